"""Each kind of leak with all of its evidence: blocks, bytes, since when, who, how they ended, what should have released
them, how it grows and how long the rest lasts. Apart from leaks: what is legitimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from kvledger.words import LEDGER_KINDS, CancelCause, FindingKind, PinKind, RequestState, Verdict
from kvledger_agent.finding import Finding
from kvledger_agent.observation import Observation
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch, ToyWatch

PREFIX = [7] * 12
LEASE_SECONDS = 4
Found = dict[FindingKind, Finding]
"""The last finding of each kind."""


def of(observation: Observation) -> Found:
    return {finding.kind: finding for finding in observation.findings or ()}


def after(fault: FaultKind) -> Found:
    """What is found of an engine with the fault, over a quarter of a minute in which requests come, share and go."""
    watch, found = EngineWatch(fault=FaultPlan(fault)), Found()
    for second in range(15):
        name = f"r{second}"
        watch.submit(NewRequest(request_id=name, prompt=[*PREFIX, 1 + second, 2, 3], max_tokens=9, tenant="acme"))
        watch.step(3)
        found |= of(watch.look())
        if second % 3 == 1:
            watch.cancel(name, cause=CancelCause.DISCONNECT)
        watch.clock.advance(NS)
    for _ in range(15):
        watch.clock.advance(NS)
        if watch.loop.has_work:
            watch.step(3)
        watch.ledger.publish_now(idle=not watch.loop.has_work)
        found |= of(watch.look())
    return found


def orphaned_pin() -> Found:
    """A transfer's pin, whose lease is over and whose request has ended."""
    watch = ToyWatch()
    slot = watch.admit(2)
    block = watch.toy.table(slot)[0]
    watch.ledger.begin()
    watch.toy.pin(block, lease_ns=LEASE_SECONDS * NS)
    watch.toy.finish(slot)
    watch.toy.count()
    watch.ledger.end()
    return of(watch.looks(LEASE_SECONDS + 15))


def finishing() -> Found:
    """A request that has ended and keeps its blocks."""
    watch = ToyWatch()
    slot = watch.admit(3)
    watch.ledger.begin()
    watch.toy.slots.changed_seq[slot] = watch.ledger.seq
    watch.toy.slots.state[slot], watch.toy.slots.finishing_ns[slot] = RequestState.FINISHING, watch.ledger.now_ns
    watch.ledger.end()
    return of(watch.looks(50))


LEAKS: Mapping[str, tuple[Callable[[], Found], set[FindingKind]]] = {
    "cancelled, not released": (lambda: after(FaultKind.SKIPPED_FREE), {FindingKind.EXCESS_REFERENCE}),
    "lost decref": (lambda: after(FaultKind.LOST_DECREF), {FindingKind.EXCESS_REFERENCE}),
    "double free": (lambda: after(FaultKind.DOUBLE_FREE), {FindingKind.DOUBLE_LISTED, FindingKind.MISSING_REFERENCE}),
    "free list, lost": (lambda: after(FaultKind.FREE_LIST_LOSS), {FindingKind.LOST_BLOCK}),
    "free list, twice": (lambda: after(FaultKind.FREE_LIST_DUPLICATE), {FindingKind.DOUBLE_LISTED}),
    "orphaned pin": (orphaned_pin, {FindingKind.PIN_OVERDUE}),
    "finishing too long": (finishing, {FindingKind.FINISHING_OVERDUE}),
}


@pytest.mark.parametrize("name", LEAKS)
def test_each_kind_of_leak_is_found_with_blocks_since_when_who_and_growth(name: str) -> None:
    make, kinds = LEAKS[name]

    found = make()

    assert kinds & found.keys(), found
    for finding in found.values():
        assert (finding.block_count or 0) >= 1
        assert finding.blocks or finding.kind is FindingKind.FINISHING_OVERDUE
        assert 0 < finding.since_clock_ns <= finding.found_clock_ns <= finding.seen_clock_ns
        assert finding.known
        assert finding.blocks_per_minute is not None, "a quarter of a minute is long enough to tell"


@pytest.mark.parametrize("name", ["cancelled, not released", "lost decref", "free list, lost"])
def test_a_leak_of_an_engine_names_bytes_who_did_it_how_it_ended_and_what_should_have_released_it(name: str) -> None:
    make, (kind,) = LEAKS[name]
    size = EngineWatch().config.limits().groups[0].block_bytes

    finding = make()[kind]

    assert finding.bytes == (finding.block_count or 0) * size > 0
    (*who,) = (finding.owner,) if finding.owner is not None else finding.candidates
    assert who, finding.known
    assert all(ref is not None and ref.tenant == "acme" and ref.id_head for ref in who)
    assert all(ref is not None and (ref.live or ref.ended) for ref in who)
    if finding.owner is not None:
        assert finding.release is not None
        assert finding.release.seq <= finding.seq
    else:
        assert "gave blocks back in publication" in finding.known


def test_an_orphaned_pin_says_what_kind_it_is_who_holds_it_and_how_long_its_lease_is_over() -> None:
    finding = orphaned_pin()[FindingKind.PIN_OVERDUE]

    assert finding.known.startswith("a transfer pin of holder 1, ")
    assert finding.known.endswith(f"s old with a lease of {LEASE_SECONDS:.1f} s, that nobody takes back")


def test_a_pin_whose_holder_is_a_request_names_it() -> None:
    watch = EngineWatch()
    watch.submit(NewRequest(request_id="sender", prompt=[1] * 12, max_tokens=30, tenant="acme"))
    watch.step(2)
    (serial,) = watch.sample().slots.serial.tolist()
    slot = int(watch.ledger.slots.serial.tolist().index(serial))
    watch.ledger.begin()
    watch.loop.cache.pins.add(
        watch.loop.cache.blocks_of(slot)[:1], PinKind.TRANSFER, serial, lease_ns=LEASE_SECONDS * NS
    )
    watch.ledger.end()

    for _ in range(LEASE_SECONDS + 3):
        watch.clock.advance(NS)
        watch.step()
        seen = of(watch.look())

    owner = seen[FindingKind.PIN_OVERDUE].owner
    assert owner is not None
    assert (owner.serial, owner.id_head, owner.tenant) == (serial, "sender", "acme")


def test_a_leak_that_grows_says_how_long_the_rest_of_the_pool_lasts_and_one_that_does_not_says_nothing() -> None:
    watch = ToyWatch(capacity=200, max_requests=100)
    for _ in range(25):
        watch.skip_free(watch.admit(2))
        seen = watch.look()
    growing = (seen.findings or ())[0]
    for _ in range(80):
        seen = watch.look()
    resting = (seen.findings or ())[0]

    assert growing.blocks_per_minute is not None
    assert growing.seconds_to_exhaustion is not None
    left = 200 - 2 * 25
    assert growing.seconds_to_exhaustion == pytest.approx(60 * left / growing.blocks_per_minute, rel=0.05)
    assert seen.verdict is not None
    assert seen.verdict.verdict is Verdict.LEAKING
    assert (resting.blocks_per_minute, resting.seconds_to_exhaustion) == (0.0, None)


def test_every_kind_of_finding_that_a_ledger_shows_has_a_scene_here_but_those_that_put_content_in_doubt() -> None:
    shown = {kind for _, kinds in LEAKS.values() for kind in kinds}

    assert set(LEDGER_KINDS) - shown == {FindingKind.SHARED_WRITE, FindingKind.STALE_INDEX_ENTRY}
