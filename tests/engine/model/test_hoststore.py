"""Swapped keys and values come back bit for bit, in every format, wherever in the cache they end up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from kvledger.geometry import KV_FORMATS
from kvledger.words import RequestState
from kvledger_engine.computes import ModelOptions, open_compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.hoststore import HostStore
from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.device import stored_dtype
from kvledger_engine.model.embedded import EMBEDDED, EMBEDDED_MODELS
from kvledger_engine.runner import ModelRunner
from tests.engine.rig import SMALL, Rig, request

CPU = torch.device("cpu")


def noisy_store(kv_format: str) -> KvStore:
    """A store whose every bit is drawn, numbers that are none among them."""
    store = KvStore(EMBEDDED, capacity_blocks=6, block_size_tokens=4, dtype=stored_dtype(kv_format), device=CPU)
    for plane in store.planes:
        plane.view(torch.uint8).random_(0, 256)
    return store


def bits(plane: Tensor) -> Tensor:
    """A plane as its bytes."""
    return plane.view(torch.uint8)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_blocks_come_back_bit_for_bit_into_other_blocks(kv_format: str) -> None:
    store = noisy_store(kv_format)
    host = HostStore(store, 3)
    before = [bits(plane).clone() for plane in store.planes]
    host.save(torch.tensor([5, 1]), torch.tensor([0, 2]))
    for plane in store.planes:
        bits(plane)[:, :, [5, 1]] = 0
    host.restore(torch.tensor([2, 0]), torch.tensor([0, 3]))
    for plane, old in zip(store.planes, before, strict=True):
        assert torch.equal(bits(plane)[:, :, [0, 3]], old[:, :, [1, 5]])
        assert torch.equal(bits(plane)[:, :, [2, 4]], old[:, :, [2, 4]])


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_its_bytes_are_those_of_as_many_blocks_of_the_cache(kv_format: str) -> None:
    store = noisy_store(kv_format)
    assert HostStore(store, 6).nbytes == store.nbytes
    assert HostStore(store, 0).nbytes == 0


def content(rig: Rig, store: KvStore, slot: int, tokens: int) -> list[tuple[int, Tensor]]:
    """All bits that a sequence's first tokens have in the cache, group by group: from which token on, and the bits."""
    cache, found = rig.loop._cache, list[tuple[int, Tensor]]()
    for tables in cache.group_tables(np.array([slot])) or (None,):
        blocks, skipped = (cache.blocks_of(slot), 0) if tables is None else (tables.blocks, int(tables.skipped[0]))
        first = skipped * rig.config.block_size_tokens
        for plane in store.planes:
            # Of a vector its bytes, of a scale the whole: a token a row.
            mine = (bits(plane) if plane.dim() == 5 else plane.view(torch.int32))[
                :, :, torch.from_numpy(blocks.astype(np.int64))
            ]
            found.append((first, mine.flatten(2, 3)[:, :, : tokens - first].clone()))
    return found


def assert_kept(old: list[tuple[int, Tensor]], new: list[tuple[int, Tensor]]) -> None:
    """What lay in the windows before and still does is the same, bit for bit."""
    for (from_old, was), (from_new, now) in zip(old, new, strict=True):
        gone = from_new - from_old
        still = was.shape[2] - gone
        assert still > 0
        assert torch.equal(was[:, :, gone:], now[:, :, :still])


@pytest.mark.parametrize("kv_format", ["fp32", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("model", EMBEDDED_MODELS)
def test_a_sequence_that_was_swapped_has_every_bit_back_and_goes_on_as_if_it_never_had_been(
    model: str, kv_format: str
) -> None:
    sizes = SMALL | {
        "capacity_blocks": 22 if model == "embedded" else 46,
        "prefix_caching": False,
        "preemption": "swap",
        "swap_blocks": 60,
        "max_model_len_tokens": 120,
    }
    opened = open_compute(EngineConfig(**sizes), ModelOptions(source=model, device="cpu", kv_format=kv_format))
    assert isinstance(opened.compute, ModelRunner)
    store = opened.compute.store
    more = {"groups": opened.config.groups, "vocab_size": opened.config.vocab_size}
    rig = Rig(compute=opened.compute, **(sizes | more))
    rig.submit(request("first", 20, 44), request("second", 16, 60))
    slots, seen = rig.ledger.slots, list[tuple[RequestState, list[tuple[int, Tensor]]]]()
    while rig.loop.has_work:
        mine = np.flatnonzero(slots.id_head[:] == b"second").tolist()
        state = RequestState(int(slots.state[mine[0]])) if mine else RequestState.FINISHED
        runs = state is RequestState.RUNNING
        seen.append((state, content(rig, store, mine[0], int(slots.computed_tokens[mine[0]])) if runs else []))
        rig.step()
    for old, new in pairwise([bits_then for state, bits_then in seen if state is RequestState.RUNNING]):
        assert_kept(old, new)
    assert any(state is RequestState.SWAPPED for state, _ in seen)
    assert rig.count("preemptions_total", mode="swap") > 0
    assert rig.count("preemptions_total", mode="recompute") == rig.count("recomputed_tokens_total") == 0
    assert set(rig.outcome.reasons.values()) == {"length"}
    alone = Rig(compute=opened.compute, **(sizes | more))
    alone.submit(request("second", 16, 60))
    assert alone.finish().tokens["second", 0] == rig.outcome.tokens["second", 0]
    rig.check_empty()
