"""An engine on a card: the embedded models serve in every format, and refuse nothing that the card can do."""

from __future__ import annotations

import pytest
import torch

from kvledger_engine.model.stopwatch import Stopwatch
from kvledger_engine.runner import build_runner
from tests.engine.rig import Rig, request

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kv_format", ["fp32", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("model", ["embedded", "embedded-windows"])
def test_the_embedded_models_serve_from_a_card_in_every_format(model: str, kv_format: str) -> None:
    if kv_format == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this card computes in no fp8; the engine refuses it there")
    runner = build_runner(model, capacity_blocks=200, block_size_tokens=4, device="cuda", kv_format=kv_format)
    assert type(runner.store.backend).__name__ == "TritonBackend"
    groups = runner.config.ledger_groups(runner.kv_format, 4)
    rig = Rig(compute=runner, vocab_size=512, capacity_blocks=200, max_model_len_tokens=400, groups=groups)
    rig.submit(request("a", 90, 60), request("b", 170, 60, n=2, temperature=1.0, seed=3))
    rig.finish()
    assert set(rig.outcome.reasons.values()) == {"length"}
    rig.check_empty()


def test_a_stopwatch_tells_how_long_the_card_was_at_work_and_not_how_long_the_call_took() -> None:
    device = torch.device("cuda")
    numbers = torch.ones(8192, 8192, device=device)
    watch = Stopwatch(device)
    took = []
    for products in (1, 20):
        watch.start()
        for _ in range(products):
            numbers @ numbers
        watch.stop()
        took.append(watch.seconds())
    assert took[1] > 5 * took[0] > 0
