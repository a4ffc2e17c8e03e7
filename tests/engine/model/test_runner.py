"""The runner: one token a sample whatever else is in the batch, and failures of the device as the engine's errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvledger_engine.batch import Batch, CopyTime
from kvledger_engine.errors import BadConfig, ComputeLost, NonFiniteLogits, NotEnoughMemory
from kvledger_engine.model.config import DTYPE_BYTES
from kvledger_engine.model.device import device_failures, resolve_device
from kvledger_engine.model.embedded import EMBEDDED
from kvledger_engine.model.weights import seeded_weights
from kvledger_engine.runner import ModelRunner, build_runner
from tests.engine.model.batches import batch
from tests.engine.rig import Rig, request

CPU = torch.device("cpu")


def _runner(blocks: int = 600, **options: Any) -> ModelRunner:
    return build_runner("embedded", capacity_blocks=blocks, block_size_tokens=4, device="cpu", **options)


# -- the embedded model ------------------------------------------------------------------------------------------------


def _generate(runner: ModelRunner, prompt: bytes, tokens: int) -> list[int]:
    """A greedy continuation, a step a token."""
    output: list[int] = []
    inputs, start = list(prompt), 0
    for _ in range(tokens):
        step = batch([(start, len(inputs))], tokens=np.array(inputs, np.int32))
        blocks = np.arange(len(step.table_blocks), dtype=np.int32)
        output += runner.execute(replace(step, table_blocks=blocks)).tolist()
        start, inputs = start + len(inputs), output[-1:]
    return output


@pytest.mark.parametrize("prompt", [b"Hello", b"The paged KV cache", b"\x00"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_embedded_model_goes_on_in_printable_text_that_does_not_repeat_itself(prompt: bytes, seed: int) -> None:
    output = _generate(_runner(seed=seed), prompt, 120)
    assert set(output) <= set(range(32, 127))
    assert len(set(output)) >= 15
    assert len({tuple(output[at : at + 12]) for at in range(100)}) > 50


def test_its_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (seeded_weights(EMBEDDED, seed=seed, dtype=torch.float32, device=CPU) for seed in (5, 5, 6))
    assert torch.equal(first.layers[1].qkv, again.layers[1].qkv)
    assert torch.equal(first.head, again.head)
    assert not torch.equal(first.layers[1].qkv, other.layers[1].qkv)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_it_computes_in_every_dtype(dtype: str) -> None:
    runner = _runner(dtype=dtype)
    assert runner.store.nbytes == 600 * 4 * EMBEDDED.bytes_per_token(dtype)
    step = batch([(0, 9), (0, 30)])
    exact = _runner(dtype="float64").logits(step)
    with torch.inference_mode():
        error = (runner.logits(step).double() - exact).abs().max()
    assert error < 60 * torch.finfo(runner.store.keys.dtype).eps


# -- batches -----------------------------------------------------------------------------------------------------------


def _only(step: Batch, row: int) -> Batch:
    """One row of a batch as a batch of its own."""
    first = int(step.counts[:row].sum())
    begin, end = step.table_offsets[row : row + 2]
    return replace(
        step,
        slots=step.slots[[row]],
        starts=step.starts[[row]],
        counts=step.counts[[row]],
        tokens=step.tokens[first : first + step.counts[row]],
        table_blocks=step.table_blocks[begin:end],
        table_offsets=np.array([0, end - begin], np.int32),
        sample_entry=np.zeros(1, np.int32),
        sample_slots=step.sample_slots[[row]],
        sample_seed=step.sample_seed[[row]],
        sample_temperature=step.sample_temperature[[row]],
    )


def test_a_row_gets_the_same_token_alone_and_among_others() -> None:
    lengths = [70, 1, 33, 5, 64, 2]
    wide = batch([(0, length + 1) for length in lengths])
    fields: dict[str, Any] = {
        "table_blocks": wide.table_blocks,
        "table_offsets": wide.table_offsets,
        "sample_temperature": np.array([0, 1, 0.7, 0, 2, 1], np.float32),
        "sample_seed": np.arange(6, dtype=np.uint64),
    }
    together, alone = _runner(dtype="float64"), _runner(dtype="float64")
    for step in (
        batch([(0, length) for length in lengths], **fields),
        batch([(length, 1) for length in lengths], **fields),
    ):
        tokens = together.execute(step)
        assert tokens.dtype == np.int32
        assert tokens.tolist() == [int(alone.execute(_only(step, row))[0]) for row in range(len(lengths))]


def test_rows_that_are_not_sampled_are_computed_and_answer_nothing() -> None:
    none = np.zeros(0, np.int32)
    runner = _runner()
    step = batch([(0, 7)], sample_entry=none, sample_slots=none)
    step = replace(step, sample_seed=np.zeros(0, np.uint64), sample_temperature=np.zeros(0, np.float32))
    answer = runner.execute(step)
    assert answer.shape == (0,)
    assert answer.dtype == np.int32
    assert int((runner.store.keys[0, 0] != 0).any(dim=-1).sum()) == 7


def test_copies_are_made_before_anything_is_written_or_read() -> None:
    runner = _runner(dtype="float64")
    whole = batch([(0, 6)], table_blocks=np.array([3, 8], np.int32))
    runner.execute(whole)
    tail = batch([(6, 1)], tokens=whole.tokens[-1:], table_blocks=np.array([3, 9], np.int32))
    copied = replace(tail, copy_source=np.array([8], np.int32), copy_target=np.array([9], np.int32))
    in_place = replace(tail, table_blocks=np.array([3, 8], np.int32))
    with torch.inference_mode():
        ours, expected = runner.logits(copied), runner.logits(in_place)
    assert torch.equal(ours, expected)


def test_what_copies_take_is_measured_and_nothing_where_there_are_none() -> None:
    runner = _runner()
    whole = batch([(0, 6)], table_blocks=np.array([3, 8], np.int32))
    tail = batch([(6, 1)], tokens=whole.tokens[-1:], table_blocks=np.array([3, 9], np.int32))
    copied = replace(
        tail, copy_source=np.array([8], np.int32), copy_target=np.array([9], np.int32), copy_time=CopyTime()
    )
    for step in (whole, copied):
        runner.execute(step)
    assert whole.copy_time.seconds == 0
    assert copied.copy_time.seconds > 0


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_nan_in_a_sequence_is_an_error_that_names_its_slot_and_spares_the_others() -> None:
    runner, slots = _runner(), np.array([40, 41, 42], np.int32)
    wide = batch([(0, 6), (0, 10), (0, 4)])
    tables: dict[str, Any] = {"table_blocks": wide.table_blocks, "table_offsets": wide.table_offsets}
    runner.execute(batch([(0, 5), (0, 9), (0, 3)], sample_slots=slots, **tables))
    runner.store.values[:, :, int(wide.table_blocks[wide.table_offsets[1]])] = torch.nan
    with pytest.raises(NonFiniteLogits) as caught:
        runner.execute(batch([(5, 1), (9, 1), (3, 1)], sample_slots=slots, **tables))
    assert tuple(caught.value.slots) == (41,)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), MemoryError),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), ComputeLost),
        (RuntimeError("shapes cannot be multiplied"), RuntimeError),
        (NonFiniteLogits([3]), NonFiniteLogits),
    ],
)
def test_failures_of_the_device_become_the_engines_errors(error: Exception, becomes: type[Exception]) -> None:
    with pytest.raises(becomes) as caught, device_failures():
        raise error
    assert type(caught.value) is becomes
    assert caught.value is error or caught.value.__cause__ is error


_STARVED = """
import resource, sys
import torch
from kvledger_engine.runner import build_runner
from tests.engine.rig import Rig, request

torch.set_num_threads(1)
runner = build_runner("embedded", capacity_blocks=600, block_size_tokens=4, device="cpu")
rig = Rig(compute=runner, capacity_blocks=600, vocab_size=512, max_num_batched_tokens=2048, max_model_len_tokens=2048)
rig.submit(request("before", 40, 4))
rig.finish()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20),) * 2)
rig.submit(request("large", 2000, 4))
rig.finish()
rig.submit(request("after", 40, 4))
rig.finish()
rig.check_empty()
print(*(f"{key[0]}={reason}" for key, reason in rig.outcome.reasons.items()))
"""


def test_a_step_that_finds_no_memory_ends_its_requests_and_the_engine_goes_on() -> None:
    paths = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", _STARVED], capture_output=True, text=True, env=paths, check=False)
    assert done.stdout.strip() == "before=length large=out_of_memory after=length", done.stderr[-3000:]


def test_a_cache_that_does_not_fit_stops_the_start() -> None:
    with pytest.raises(NotEnoughMemory, match=r"KV cache of .* blocks, .* bytes: use fewer blocks"):
        _runner(1 << 38)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype='int8': use one of auto, float64"),
        ({"device": "tpu"}, "device='tpu': use one of"),
        ({"kv_format": "int4"}, "kv_format='int4': use one of auto, fp32, bf16, int8, fp8"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_those_that_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        build_runner("embedded", capacity_blocks=4, block_size_tokens=4, **options)


def test_an_accelerator_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(BadConfig, match="torch sees no accelerator"):
        resolve_device("cuda")


def test_an_engine_serves_the_embedded_model() -> None:
    rig = Rig(compute=_runner(64), vocab_size=512)
    rig.submit(request("a", 9, 6), request("b", 17, 6, n=2, temperature=1.0, seed=3))
    rig.finish()
    assert set(rig.outcome.reasons.values()) == {"length"}
    assert rig.outcome.tokens["b", 0] != rig.outcome.tokens["b", 1]
    rig.check_empty()
