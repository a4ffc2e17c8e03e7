"""A whole model over the kernels: prompts and decodes in one step, copies between them, equal to plain torch.

And which of the two a tensor takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvledger_engine.attention.backend import TorchBackend, backend_for, backend_name
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.batch import Batch
from kvledger_engine.errors import BadConfig
from kvledger_engine.kernels.backend import TritonBackend
from kvledger_engine.model.embedded import EMBEDDED
from kvledger_engine.model.weights import seeded_weights
from kvledger_engine.runner import ModelRunner
from tests.engine.kernels.paged import DEVICE
from tests.engine.model.batches import batch, windowed

LAYOUT = HeadLayout(EMBEDDED.num_attention_heads, EMBEDDED.num_key_value_heads, EMBEDDED.head_dim)
LENGTHS = (20, 3, 17, 40)


def _runner(stored: torch.dtype, *, kernels: bool) -> ModelRunner:
    weights = seeded_weights(EMBEDDED, seed=3, dtype=torch.float32, device=DEVICE)
    runner = ModelRunner(EMBEDDED, weights, capacity_blocks=64, block_size_tokens=4, kv_dtype=stored, fill=float("nan"))
    if kernels:
        runner.store.backend = TritonBackend(LAYOUT, DEVICE, stored, multiprocessors=4)
    return runner


def _steps() -> list[Batch]:
    """Prompts; then decodes beside a further prompt, the first of them in a copied block; then decodes alone."""
    whole = batch([(0, length + 2) for length in LENGTHS])
    tables: dict[str, Any] = {"table_blocks": whole.table_blocks, "table_offsets": whole.table_offsets}
    first = batch([(0, length) for length in LENGTHS[:3]] + [(0, 25)], **tables)
    copied = tables["table_blocks"].copy()
    last = (LENGTHS[0] - 1) // 4
    copied[last] = 60
    mixed = batch(
        [(length, 1) for length in LENGTHS[:3]] + [(25, 15)],
        copy_source=whole.table_blocks[[last]],
        copy_target=np.array([60], np.int32),
        **(tables | {"table_blocks": copied}),
    )
    alone = batch(
        [(length + (row < 3), 1) for row, length in enumerate(LENGTHS)], **(tables | {"table_blocks": copied})
    )
    return [first, mixed, alone]


@pytest.mark.parametrize("stored", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_a_model_over_the_kernels_scores_as_over_plain_torch(stored: torch.dtype) -> None:
    ours, theirs = (_runner(stored, kernels=kernels) for kernels in (True, False))
    for step in _steps():
        with torch.inference_mode():
            mine, its = ours.logits(step), theirs.logits(step)
        assert its.isfinite().all()
        torch.testing.assert_close(mine, its, atol=2e-4, rtol=0)


def test_numbers_of_64_bits_go_the_way_of_plain_torch() -> None:
    backend = TritonBackend(LAYOUT, DEVICE, torch.float64, multiprocessors=4)
    plan = backend.plan(batch([(5, 1), (9, 1)]), 0)
    assert plan.decodes is None
    assert plan.prompts is not None


def test_cuda_takes_the_kernels_and_everything_else_plain_torch() -> None:
    assert backend_name("cuda", has_triton=True) == "triton"
    for device_type in ("cpu", "mps", "meta"):
        assert {backend_name(device_type, has_triton=there) for there in (True, False)} == {"torch"}


def test_cuda_without_triton_is_refused_and_not_served_slowly() -> None:
    with pytest.raises(BadConfig, match=r"kvledger\[kernels\]"):
        backend_name("cuda", has_triton=False)


def test_a_store_on_a_cpu_takes_plain_torch_though_triton_can_be_imported() -> None:
    assert isinstance(backend_for(LAYOUT, torch.device("cpu"), torch.float32), TorchBackend)


def test_groups_that_keep_sinks_go_the_way_of_plain_torch() -> None:
    backend = TritonBackend(LAYOUT, DEVICE, torch.float32, multiprocessors=4)
    for sinks, by_kernel in ((0, True), (1, False)):
        plan = backend.plan(windowed([(50, 1), (30, 1)], 8, sink_blocks=sinks), 0)
        assert (plan.decodes is not None) is by_kernel
        assert (plan.prompts is None) is by_kernel
