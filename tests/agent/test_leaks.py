"""Suspects become findings when they last, at once where content is at stake, and never because an engine hangs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.words import BlockState, FindingKind, RequestState, Verdict
from kvledger_agent.finding import Finding
from kvledger_agent.observation import Observation
from tests.agent.rig import NS, RealWatch, ToyWatch, source_over

GRACE_LOOKS = 3


def kinds(observation: Observation) -> set[FindingKind]:
    return {finding.kind for finding in observation.findings or ()}


def only(observation: Observation) -> Finding:
    assert observation.findings is not None
    assert len(observation.findings) == 1, observation.findings
    return observation.findings[0]


def test_a_leak_is_named_after_the_grace_and_not_before() -> None:
    watch = ToyWatch()
    slot = watch.admit(3)
    watch.looks(3)
    leaked = watch.skip_free(slot)

    for _ in range(GRACE_LOOKS):
        observation = watch.look()
        assert observation.findings == ()
        assert observation.undecided == 3
    observation = watch.look()

    assert only(observation).blocks == tuple(sorted(leaked))
    assert observation.leaked_blocks == 3
    assert observation.verdict is not None
    assert observation.verdict.verdict is Verdict.LEAKING


def test_a_finding_closes_when_the_block_is_in_order_again() -> None:
    watch = ToyWatch()
    (block,) = watch.skip_free(watch.admit(1))
    assert kinds(watch.looks(5)) == {FindingKind.EXCESS_REFERENCE}

    watch.ledger.begin()
    watch.toy.give(block)
    watch.toy.count()
    watch.ledger.end()

    assert watch.look().findings == ()


def test_a_leaked_block_that_goes_on_being_shared_is_found_though_its_stamp_never_rests() -> None:
    watch = ToyWatch()
    block = watch.toy.table(watch.admit(1))[0]
    watch.ledger.begin()
    watch.toy.stamp(block)
    watch.ledger.blocks.ref_count[block] += 1
    watch.ledger.end()

    for _ in range(GRACE_LOOKS + 1):
        watch.admit(1, shared=[block])
        observation = watch.look()

    finding = only(observation)
    assert (finding.kind, finding.blocks) == (FindingKind.EXCESS_REFERENCE, (block,))


def test_an_engine_that_is_stopped_is_frozen_and_never_leaking() -> None:
    watch = RealWatch()
    watch.ledger.begin()
    slot = watch.toy.admit(3)
    watch.toy.count()
    watch.ledger.end()
    watch.ledger.begin()
    watch.toy.drop_tables(slot)  # mid-way through a legitimate release, as far as a reader can tell
    watch.toy.count()
    watch.ledger.end()

    for second in range(1, 60):
        observation = watch.look(second)
        assert observation.findings == ()
    assert observation.liveness.status == "frozen"
    assert observation.verdict is not None
    assert observation.verdict.verdict is Verdict.FROZEN

    watch.publish()
    assert watch.look(60.5).findings == ()


def test_an_abort_on_an_idle_engine_that_leaks_is_found_though_the_engine_runs_no_more_code() -> None:
    watch = RealWatch()
    watch.ledger.begin()
    slot = watch.toy.admit(2)
    watch.toy.count()
    watch.ledger.end()
    watch.ledger.begin()
    watch.toy.drop_tables(slot)
    watch.toy.finish(slot)
    watch.toy.count()
    watch.ledger.end(idle=True)

    observations = [watch.look(second) for second in range(1, 7)]

    assert [bool(o.findings) for o in observations] == [False, False, False, True, True, True]


def test_a_leak_in_the_ledger_of_a_dead_engine_is_judged_at_once() -> None:
    watch = ToyWatch()
    blocks = watch.skip_free(watch.admit(2))

    observation = watch.final().look()

    assert only(observation).blocks == tuple(sorted(blocks))
    assert observation.liveness.status == "dead"


def test_blocks_of_requests_that_were_live_when_the_engine_died_are_no_leak() -> None:
    watch = ToyWatch()
    watch.admit(5)
    watch.admit(2)

    assert watch.final().look().findings == ()
    assert watch.final(cut_short=True).look().findings == ()


def test_what_the_publication_in_which_the_engine_died_had_touched_is_unknown_and_not_wrong() -> None:
    watch = ToyWatch()
    slot = watch.admit(4)
    watch.look()
    watch.ledger.begin()
    watch.toy.drop_tables(slot)

    assert source_over(watch.ledger, live=False).look().findings == ()


def test_of_a_publication_cut_short_only_what_the_last_complete_one_left_alone_is_judged() -> None:
    watch = ToyWatch()
    blocks = watch.skip_free(watch.admit(2))
    assert watch.final(cut_short=True).look().findings == ()

    watch.publish()

    assert only(watch.final(cut_short=True).look()).blocks == tuple(sorted(blocks))


def test_a_pin_is_overdue_by_its_lease_one_sample_later() -> None:
    watch = ToyWatch()
    block = watch.toy.table(watch.admit(1))[0]
    watch.ledger.begin()
    watch.toy.pin(block, lease_ns=4 * NS)
    watch.toy.count()
    watch.ledger.end()

    shown = [kinds(watch.look()) for _ in range(8)]

    assert shown[:5] == [set()] * 5
    assert shown[5:] == [{FindingKind.PIN_OVERDUE}] * 3


def test_a_stopped_engine_makes_no_pin_overdue() -> None:
    watch = RealWatch()
    watch.ledger.begin()
    watch.toy.pin(watch.toy.table(watch.toy.admit(1))[0], lease_ns=2 * NS)
    watch.toy.count()
    watch.ledger.end()

    assert not any(watch.look(second).findings for second in range(1, 40))


def test_a_request_that_ended_and_keeps_its_blocks_for_half_a_minute_is_finishing_overdue() -> None:
    watch = ToyWatch()
    slot = watch.admit(3)
    serial = int(watch.toy.slots.serial[slot])
    watch.ledger.begin()
    watch.toy.slots.changed_seq[slot] = watch.ledger.seq
    watch.toy.slots.state[slot] = RequestState.FINISHING
    watch.toy.slots.finishing_ns[slot] = watch.ledger.now_ns
    watch.ledger.end()

    assert watch.looks(30).findings == ()
    finding = only(watch.looks(3))

    assert finding.kind is FindingKind.FINISHING_OVERDUE
    assert finding.owner is not None
    assert finding.owner.serial == serial
    assert finding.block_count == 3


@pytest.mark.parametrize("kind", [FindingKind.MISSING_REFERENCE, FindingKind.DOUBLE_LISTED])
def test_what_corrupts_content_is_a_finding_at_once_and_stays_one_for_a_minute(kind: FindingKind) -> None:
    watch = ToyWatch()
    block = watch.toy.table(watch.admit(2))[0]
    watch.look()
    watch.ledger.begin()
    watch.toy.stamp(block)
    watch.ledger.blocks.ref_count[block] -= kind is FindingKind.MISSING_REFERENCE
    free = watch.toy.word("free_count")
    if kind is FindingKind.DOUBLE_LISTED:
        watch.ledger.free.list[free] = block
        watch.set_control("free_count", free + 1)
    watch.ledger.end()

    assert kind in kinds(watch.look())

    watch.ledger.begin()
    watch.toy.stamp(block)
    watch.ledger.blocks.ref_count[block] = 1
    watch.set_control("free_count", free)
    watch.ledger.end()
    assert kind in kinds(watch.looks(55))
    assert watch.looks(10).findings == ()


def test_a_lost_block_shows_as_such_and_in_the_count_of_blocks() -> None:
    watch = ToyWatch()
    watch.ledger.begin()
    block = int(watch.ledger.free.list[watch.toy.word("free_count") - 1])
    watch.toy.stamp(block)
    watch.set_control("free_count", watch.toy.word("free_count") - 1)
    watch.ledger.stats.values[watch.ledger.stats.gauge("free_blocks")] -= 1
    watch.ledger.end()

    for _ in range(5):
        watch.clock.advance(NS)
        watch.ledger.publish_now(idle=False)
        observation = watch.source.look()

    finding = only(observation)
    assert (finding.kind, finding.blocks) == (FindingKind.LOST_BLOCK, (block,))
    assert observation.violations is not None
    assert observation.violations["capacity"] == -1.0
    assert watch.ledger.blocks.state[block] == BlockState.FREE


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30), pauses=st.lists(st.integers(1, 6), min_size=5, max_size=15))
def test_an_engine_without_a_fault_raises_no_finding_alive_or_dead(seed: int, pauses: list[int]) -> None:
    watch = ToyWatch(seed)
    for pause in pauses:
        for _ in range(pause):
            watch.clock.advance(NS // 3)
            watch.toy.step(4)
        observation = watch.source.look()
        assert observation.findings == ()
        assert observation.violations is not None
        assert not any(observation.violations.values())
    watch.ledger.begin()
    watch.toy.operate(2)

    assert source_over(watch.ledger, live=False).look().findings == ()
