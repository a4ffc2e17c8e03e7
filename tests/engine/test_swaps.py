"""Swapping by example: saved once, shared again, brought back first, computed again where the host pool is full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvledger.words import CancelCause, Event, PreemptionMode, RequestState
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.preemption import preemption_mode
from tests.engine.rig import Rig, expected, request
from tests.engine.test_swaps_machine import host_is_sound

SWAP: dict[str, Any] = {"preemption": "swap", "swap_blocks": 40}


def state_of(rig: Rig, name: str) -> RequestState:
    """The state of a request's first live sequence."""
    slots = rig.sample().slots
    return RequestState(int(slots.state[slots.id_head == name.encode()][0]))


def until_swapped(rig: Rig, name: str) -> None:
    """Step until a request is swapped out."""
    while state_of(rig, name) is not RequestState.SWAPPED:
        rig.step()


@pytest.mark.parametrize(
    ("saved", "copied", "free", "mode"),
    [(3, 3, 3, "swap"), (3, 3, 2, "recompute"), (3, 0, 0, "swap"), (0, 0, 9, "recompute")],
)
def test_what_fits_whole_into_the_host_pool_is_swapped_and_nothing_else(
    saved: int, copied: int, free: int, mode: str
) -> None:
    chosen = preemption_mode(saved_blocks=saved, copied_blocks=copied, free_blocks=free)
    assert chosen is PreemptionMode[mode.upper()]


def test_the_ledger_shows_who_is_swapped_what_became_of_the_blocks_and_how() -> None:
    rig = Rig(capacity_blocks=12, prefix_caching=False, **SWAP)
    requests = [request("first", 20, 20), request("second", 8, 20)]
    rig.submit(*requests)
    until_swapped(rig, "second")
    sample = rig.check()
    row = np.flatnonzero(sample.slots.id_head == b"second")[0]
    assert not sample.slots.table_blocks[row].any()
    assert sample.stats.gauge("waiting") == 1
    serial = int(sample.slots.serial[row])
    assert rig.serials_of(Event.PREEMPTED) == [serial]
    events = rig.reader.events(0).records
    assert events["detail"][events["event"] == Event.PREEMPTED].tolist() == [PreemptionMode.SWAP]
    held = rig.loop._cache.swaps.used_blocks
    assert held == rig.count("preempted_blocks_total", fate="swapped") > 0
    rig.finish()
    swapped = rig.count("preempted_blocks_total", fate="swapped")
    moved = [rig.count("swapped_blocks_total", direction=direction) for direction in ("out", "in")]
    assert moved == [swapped, swapped], "nothing is shared here: each block goes out and comes in again"
    assert rig.outcome.tokens == expected(requests)
    assert rig.count("preemptions_total", mode="swap") > 0
    assert rig.count("preemptions_total", mode="recompute") == rig.count("recomputed_tokens_total") == 0
    rig.check_empty()


def test_where_the_host_pool_is_full_tokens_are_computed_again_and_that_is_counted() -> None:
    rig = Rig(capacity_blocks=12, prefix_caching=False, preemption="swap", swap_blocks=1)
    requests = [request("first", 20, 20), request("second", 8, 20)]
    rig.submit(*requests)
    rig.finish()
    assert rig.outcome.tokens == expected(requests)
    assert rig.count("preemptions_total", mode="swap") == 0
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.count("preempted_blocks_total", fate="swapped") == 0
    assert rig.count("recomputed_tokens_total") > 0


def test_blocks_that_several_victims_share_are_saved_once_and_shared_again() -> None:
    rig = Rig(capacity_blocks=24, max_num_batched_tokens=80, prefix_caching=False, **SWAP)
    forks, other = request("forks", 24, 36, n=2, temperature=1.0), request("other", 4, 40)
    rig.submit(other)
    rig.step()
    rig.submit(forks)
    swaps = rig.loop._cache.swaps
    while len(swaps._saved) < 2:
        assert rig.loop.has_work, "the forks never gave way together"
        rig.step()
    first, second = swaps._saved.values()
    shared = set(first.hosts.tolist()) & set(second.hosts.tolist())
    assert len(shared) == 6
    rig.step()
    assert rig.count("swapped_blocks_total", direction="out") == rig.count("preempted_blocks_total", fate="swapped") - 6
    assert swaps.used_blocks == len(set(first.hosts.tolist()) | set(second.hosts.tolist()))
    host_is_sound(rig)
    most = 0
    while rig.loop.has_work:
        rig.step()
        rig.check()  # what is shared again is nobody's own
        back = not swaps._saved and rig.count("preemptions_total", mode="swap") > 0
        most = max(most, int(np.count_nonzero(rig.ledger.blocks.ref_count[:] == 2)) if back else 0)
    assert most == 6
    assert rig.outcome.tokens == expected([forks, other])
    rig.check_empty()


def test_swapped_sequences_are_brought_back_before_those_to_be_computed_again() -> None:
    rig = Rig(capacity_blocks=16, max_num_batched_tokens=80, prefix_caching=False, preemption="swap", swap_blocks=5)
    requests = [request("a", 12, 28), request("b", 12, 24), request("c", 12, 24)]
    rig.submit(*requests)
    while {state_of(rig, "b"), state_of(rig, "c")} != {RequestState.SWAPPED, RequestState.PREEMPTED}:
        rig.step()
        assert len(rig.sample().slots) == 3, "nobody was swapped while another was not"
    order = [rig.loop._requests.request_ids[leader] for lane in rig.loop._queue.lanes() for leader in lane.entries]
    assert state_of(rig, order[0]) is RequestState.SWAPPED
    rig.finish()
    assert rig.outcome.tokens == expected(requests)
    rig.check_empty()


def test_what_still_lies_in_the_pool_is_shared_and_not_copied_back() -> None:
    rig = Rig(capacity_blocks=14, **SWAP)
    requests = [request("first", 20, 24), request("second", 17, 20)]
    rig.submit(*requests)
    until_swapped(rig, "second")
    rig.cancel("first", cause=CancelCause.API)
    brought: list[int] = []
    execute = rig.cells.execute

    def watch(batch: Any) -> Any:
        if batch.host_copies is not None:
            brought.append(len(batch.host_copies.in_hosts))
        return execute(batch)

    rig.cells.execute = watch  # type: ignore[method-assign]
    rig.finish()
    assert rig.count("swapped_blocks_total", direction="in") == sum(brought)
    assert sum(brought) == 1  # its last block alone, which was not full; the others were cached all the time
    assert rig.outcome.tokens["second", 0] == expected(requests)["second", 0]
    rig.check_empty()


def test_a_prefix_that_was_swapped_is_found_again_by_others() -> None:
    rig = Rig(capacity_blocks=14, **SWAP)
    requests = [request("first", 24, 20), request("second", 13, 20)]
    rig.submit(*requests)
    until_swapped(rig, "second")
    rig.finish()
    hits = rig.count("prefix_hit_tokens_total")
    again = request("again", [*request("second", 13).prompt, 1], 2)
    rig.submit(again)
    rig.finish()
    assert rig.count("prefix_hit_tokens_total") == hits + 12
    assert rig.outcome.tokens == expected([*requests, again])


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"preemption": "swap"}, "swap_blocks=0"),
        ({"swap_blocks": 4}, "swap_blocks=4"),
        ({"preemption": "wait"}, "preemption='wait'"),
        ({"preemption": "swap", "swap_blocks": -1}, "swap_blocks=-1"),
    ],
)
def test_contradictions_are_refused_with_their_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(BadConfig, match=field):
        EngineConfig(**values)
