"""Requests that go by a token clock are read as if every token had been counted in their slot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.limits import Group, Limits
from kvledger.pace import Pace
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.writer import Ledger
from kvledger_vllm.pace import TokenClock

SLOTS, BLOCK_TOKENS = 6, 16
TURNS = st.lists(
    st.one_of(
        st.just("tick"),
        st.just("end"),
        st.sets(st.integers(0, SLOTS - 1), min_size=1).map(sorted),
    ),
    max_size=40,
)


def ledger_of(clock: VirtualClock) -> Ledger:
    limits = Limits(
        engine="pace",
        capacity_blocks=8,
        max_requests=SLOTS,
        groups=(Group(name="full", block_size_tokens=BLOCK_TOKENS),),
    )
    return Ledger.in_memory(limits, clock=clock)


@given(turns=TURNS, which=st.sampled_from(list(Pace)))
def test_a_clock_counts_what_its_slots_would_have_counted(turns: list[str | list[int]], which: Pace) -> None:
    clock = VirtualClock(1)
    ledger = ledger_of(clock)
    slots = ledger.slots
    slots.serial[:] = np.arange(1, SLOTS + 1)
    slots.computed_tokens[:] = slots.output_tokens[:] = np.arange(SLOTS) * 7
    pace, going = TokenClock(ledger, which), list[int]()
    counts, times = (np.arange(SLOTS) * 7).tolist(), [0] * SLOTS
    for turn in turns:
        clock.advance(1_000)
        ledger.begin()
        if turn == "tick":
            if going:
                pace.tick()
            for slot in going:
                counts[slot] += 1
                times[slot] = ledger.now_ns
        else:
            pace.end()
            going = [] if isinstance(turn, str) else turn
            if going:
                pace.begin(np.array(going, np.intp))
        ledger.end()
        seen = Reader.over(MemorySource(ledger.image)).sample().slots
        if which is Pace.COMPUTED:
            assert seen.computed_tokens.tolist() == counts
            assert all(seen.own_from_token[slot] == counts[slot] // BLOCK_TOKENS * BLOCK_TOKENS for slot in going)
        else:
            assert seen.output_tokens.tolist() == counts
            assert seen.last_token_ns.tolist() == times
        assert seen.settled.all()


@given(began=st.integers(-(2**63), 2**63 - 1), which=st.sampled_from(list(Pace)))
def test_a_damaged_beginning_takes_no_token_away(began: int, which: Pace) -> None:
    ledger = ledger_of(VirtualClock(1))
    slots = ledger.slots
    slots.serial[0], slots.computed_tokens[0], slots.output_tokens[0] = 1, 5, 5
    slots.pace[0] = which
    slots.pace_computed[0] = slots.pace_generated[0] = began
    ledger.publish_now()

    seen = Reader.over(MemorySource(ledger.image)).sample().slots

    assert seen.computed_tokens[0] >= 5
    assert seen.output_tokens[0] >= 5
