"""Request time is cut into parts that add up to it: nobody's time is lost, and none is counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.words import WaitCause
from kvledger_agent.lives import Lives, lives_of
from kvledger_agent.verdict.request_time import PARTS, parts_of, request_time
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch

TIMES = st.integers(-5 * NS, 200 * NS)


def lives(*rows: tuple[int, ...], waits: list[float] | None = None) -> Lives:
    """Lives of (arrived, first block, first token, ended, gone); `waits` are each one's, by cause."""
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    seconds = np.zeros((len(rows), len(WaitCause)))
    seconds[:] = 0.0 if waits is None else waits
    return Lives(
        arrived_ns=columns[0],
        first_block_ns=columns[1],
        first_token_ns=columns[2],
        ended_ns=columns[3],
        gone_ns=columns[4],
        wait_seconds=seconds,
        tenant=np.zeros(len(rows), np.int16),
        request_class=np.zeros(len(rows), np.uint8),
        live=np.zeros(len(rows), np.bool_),
    )


@given(
    st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES), max_size=8),
    st.lists(st.floats(0, 300), min_size=len(WaitCause), max_size=len(WaitCause)),
    st.integers(0, 150 * NS),
)
def test_the_parts_of_each_request_are_never_negative_and_sum_to_its_time_in_the_window(
    rows: list[tuple[int, ...]], waits: list[float], since_ns: int
) -> None:
    now_ns, known = 160 * NS, lives(*rows, waits=waits)

    parts = parts_of(known, since_ns=since_ns, now_ns=now_ns)

    began = np.minimum(known.arrived_ns, now_ns)
    gone = np.clip(known.gone_ns, np.clip(known.ended_ns, began, now_ns), now_ns)
    there = np.maximum(np.minimum(gone, now_ns) - np.maximum(began, since_ns), 0) / NS
    assert parts.min(initial=0.0) >= 0
    assert parts.sum(axis=1) == pytest.approx(there, abs=1e-6)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES), min_size=1, max_size=8), st.floats(0, 300))
def test_shares_sum_to_one_or_nobody_was_there(rows: list[tuple[int, ...]], wait: float) -> None:
    time = request_time(lives(*rows, waits=[wait] * len(WaitCause)), since_ns=0, now_ns=160 * NS)

    assert tuple(time.seconds) == PARTS
    assert sum(time.shares.values()) == pytest.approx(1.0) if time.shares else time.total_seconds == 0


def test_a_life_is_wait_then_prefill_then_decode_then_what_is_left() -> None:
    waits = [0.0] * len(WaitCause)
    waits[WaitCause.POOL], waits[WaitCause.STEP] = 3.0, 1.0

    time = request_time(lives((0, 4 * NS, 6 * NS, 16 * NS, 17 * NS), waits=waits), since_ns=0, now_ns=20 * NS)

    found = {part: seconds for part, seconds in time.seconds.items() if seconds}
    assert found == {"wait_pool": 3.0, "wait_step": 1.0, "prefill": 2.0, "decode": 10.0, "other": 1.0}


def test_a_wait_after_the_first_token_is_no_decode() -> None:
    waits = [0.0] * len(WaitCause)
    waits[WaitCause.PREEMPTION] = 4.0

    time = request_time(lives((0, 0 + 1, 2 * NS, 12 * NS, 12 * NS), waits=waits), since_ns=0, now_ns=20 * NS)

    assert time.seconds["wait_preemption"] == pytest.approx(4.0)
    assert time.seconds["decode"] == pytest.approx(6.0)


def test_a_window_counts_the_part_of_a_life_that_lies_in_it() -> None:
    waits = [0.0] * len(WaitCause)
    waits[WaitCause.POOL] = 4.0

    time = request_time(lives((0, 4 * NS, 6 * NS, 16 * NS, 16 * NS), waits=waits), since_ns=3 * NS, now_ns=10 * NS)

    assert time.seconds["wait_pool"] == pytest.approx(1.0)
    assert (time.seconds["prefill"], time.seconds["decode"], time.total_seconds) == (2.0, 4.0, 7.0)


def test_who_is_refused_after_a_wait_has_waited() -> None:
    """`queue_timeout`: the wait of those that were never begun is in the shares, as is that of the others."""
    watch = EngineWatch(max_num_seqs=1, queue_timeout_seconds=3.0)
    for name in ("runs", "waits", "waits, too"):
        watch.submit(NewRequest(request_id=name, prompt=[1, 2, 3], max_tokens=30))
    for _ in range(6):
        watch.clock.advance(NS)
        watch.step()
    assert len(watch.outcome.refused) == 2

    time = watch.look().verdict
    assert time is not None
    assert time.request_time is not None

    assert time.request_time.requests == 3
    waited = sum(seconds for part, seconds in time.request_time.seconds.items() if part.startswith("wait_"))
    assert waited > 2 * 3.0
    assert time.request_time.seconds["wait_batch_slots"] == pytest.approx(2 * 3.0, abs=2 * 1.1)


def test_a_live_engines_time_is_that_of_its_requests_ended_and_live() -> None:
    watch = EngineWatch(max_num_seqs=1)
    for name in ("one", "two"):
        watch.loop.submit(NewRequest(request_id=name, prompt=[1, 2, 3], max_tokens=4))
    for _ in range(6):
        watch.clock.advance(NS)
        watch.loop.step()
    sample = watch.source.reader.sample()
    watch.source.summaries.pull()

    time = request_time(lives_of(sample, watch.source.summaries.records()), since_ns=0, now_ns=sample.now_ns)

    assert time.requests == 2
    assert time.seconds["wait_batch_slots"] > 0
    ended = watch.source.summaries.records()
    assert ended is not None
    there_ns = int((ended["finished_ns"] - ended["arrived_ns"]).sum() + (sample.now_ns - sample.slots.arrived_ns).sum())
    assert time.total_seconds == pytest.approx(there_ns / NS)
