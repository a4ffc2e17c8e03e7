"""Requests that go by a token clock are read as if every token had been counted in their slot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kvledger_vllm.pace import TokenClock

from kvledger.clock import VirtualClock
from kvledger.limits import Group, Limits
from kvledger.pace import Pace
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.writer import Ledger

SLOTS, BLOCK_TOKENS = 6, 16
TURNS = st.lists(st.tuples(st.sampled_from(("tick", "join", "leave", "stop")), st.integers(0, SLOTS - 1)), max_size=60)


def ledger_of(clock: VirtualClock) -> Ledger:
    limits = Limits(
        engine="pace",
        capacity_blocks=8,
        max_requests=SLOTS,
        groups=(Group(name="full", block_size_tokens=BLOCK_TOKENS),),
    )
    return Ledger.in_memory(limits, clock=clock)


@given(turns=TURNS, which=st.sampled_from(list(Pace)))
def test_a_clock_counts_what_its_slots_would_have_counted(turns: list[tuple[str, int]], which: Pace) -> None:
    clock = VirtualClock(1)
    ledger = ledger_of(clock)
    slots = ledger.slots
    slots.serial[:] = np.arange(1, SLOTS + 1)
    slots.computed_tokens[:] = slots.output_tokens[:] = np.arange(SLOTS) * 7
    pace, going = TokenClock(ledger, which), set[int]()
    counts, times = (np.arange(SLOTS) * 7).tolist(), [0] * SLOTS
    for turn, slot in turns:
        clock.advance(1_000)
        ledger.begin()
        if turn == "tick":
            pace.tick()
            for each in going:
                counts[each] += 1
                times[each] = ledger.now_ns
        elif turn == "stop":
            pace.stop()
            going.clear()
        elif turn == "leave":
            pace.leave(slot)
            going.discard(slot)
        elif slot not in going:
            pace.join(slot)
            going.add(slot)
        ledger.end()
        assert (pace.slots, pace.total) == (going, sum(counts[each] for each in going))
        assert all(pace.count(each) == counts[each] for each in going)
        seen = Reader.over(MemorySource(ledger.image)).sample().slots
        if which is Pace.COMPUTED:
            assert seen.computed_tokens.tolist() == counts
            assert all(seen.own_from_token[each] == counts[each] // BLOCK_TOKENS * BLOCK_TOKENS for each in going)
        else:
            assert seen.output_tokens.tolist() == counts
            assert seen.last_token_ns.tolist() == times
        assert seen.settled.all()


@given(began=st.integers(-(2**63), 2**63 - 1), count=st.integers(5, 2**31 - 1), which=st.sampled_from(list(Pace)))
def test_a_damaged_beginning_or_count_takes_no_token_away(began: int, count: int, which: Pace) -> None:
    ledger = ledger_of(VirtualClock(1))
    slots = ledger.slots
    slots.serial[0], slots.computed_tokens[0], slots.output_tokens[0] = 1, count, count
    slots.pace[0] = which
    slots.pace_computed[0] = slots.pace_generated[0] = began
    ledger.publish_now()

    seen = Reader.over(MemorySource(ledger.image)).sample().slots

    assert seen.computed_tokens[0] >= count
    assert seen.output_tokens[0] >= count
