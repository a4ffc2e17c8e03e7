"""Who left a block behind: proven, or candidates, or said to be unknown."""

from __future__ import annotations

from kvledger.words import CancelCause, Event, FindingKind
from kvledger_agent.finding import Finding
from kvledger_agent.observation import Observation
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch, ToyWatch, source_over


def request(name: str, prompt: list[int], tokens: int = 30) -> NewRequest:
    return NewRequest(request_id=name, prompt=prompt, max_tokens=tokens, tenant="acme")


def leaking_engine() -> EngineWatch:
    """Two requests with one prefix; the second is cancelled and its blocks are not freed."""
    fault = FaultPlan(FaultKind.SKIPPED_FREE)
    watch = EngineWatch(fault=fault)
    prefix = list(range(12))
    watch.loop.submit(request("keeper", [*prefix, 1, 2, 3]))
    watch.loop.step()
    watch.look()
    watch.loop.submit(request("leaker-" + "x" * 60, [*prefix, 9, 8, 7]))
    for _ in range(3):
        watch.loop.step()
    watch.loop.cancel(["leaker-" + "x" * 60], CancelCause.DISCONNECT)
    return watch


def findings_after_the_grace(watch: EngineWatch) -> Observation:
    for _ in range(5):
        observation = watch.look()
        watch.clock.advance(NS)
        watch.loop.step()
    return observation


def test_blocks_that_nobody_else_ever_held_name_their_proven_owner() -> None:
    observation = findings_after_the_grace(leaking_engine())

    (proven,) = [f for f in observation.findings or () if f.owner is not None]

    assert proven.kind is FindingKind.EXCESS_REFERENCE
    owner = proven.owner
    assert owner is not None
    assert (owner.tenant, owner.ended, owner.live) == ("acme", "cancelled:disconnect", False)
    assert owner.id_head == ("leaker-" + "x" * 60)[:40]
    assert owner.id_tail == "x" * 16
    assert proven.candidates == ()
    assert observation.verdict is not None
    told = f"{proven.block_count} of them of request {owner.serial} (tenant acme, cancelled:disconnect)"
    assert told in observation.verdict.evidence, "though the other finding, of shared blocks, comes first"


def test_shared_blocks_name_the_requests_that_gave_blocks_back_since_they_were_in_order() -> None:
    observation = findings_after_the_grace(leaking_engine())

    (shared,) = [f for f in observation.findings or () if f.owner is None]

    assert [ref.id_head and ref.id_head[:6] for ref in shared.candidates] == ["leaker"]
    assert "these gave blocks back in publications " in shared.known
    assert shared.known.endswith(f" to {shared.seq}")


def test_who_leaked_shared_blocks_is_a_candidate_even_if_another_let_go_of_them_before_the_next_look() -> None:
    watch = leaking_engine()
    watch.loop.submit(request("innocent", [*range(12), 4, 5, 6], tokens=2))
    for _ in range(4):
        watch.loop.step()

    (shared,) = [f for f in findings_after_the_grace(watch).findings or () if f.owner is None]

    assert [ref.id_head and ref.id_head[:6] for ref in shared.candidates] == ["leaker", "innoce"]
    assert "may have left them" not in shared.known


def test_who_did_not_watch_says_that_an_earlier_holder_may_have_left_shared_blocks() -> None:
    watch = leaking_engine()
    watched = findings_after_the_grace(watch).findings or ()
    # The leaked prefix is shared once more and given back in order: the last to touch it is innocent.
    watch.loop.submit(request("innocent", [*range(12), 4, 5, 6], tokens=2))
    for _ in range(4):
        watch.loop.step()

    late = source_over(watch.ledger, live=False).look().findings or ()

    (known,) = [f for f in watched if f.owner is None]
    (guessed,) = [f for f in late if f.owner is None]
    assert [ref.id_head and ref.id_head[:6] for ref in known.candidates] == ["leaker"]
    assert [ref.id_head for ref in guessed.candidates] == ["innocent"]
    assert "may have left them" in guessed.known
    assert "may have left them" not in known.known


def test_the_bytes_and_the_time_of_a_leak_are_known() -> None:
    watch = leaking_engine()
    leaked_ns = watch.clock.now_ns()

    findings: tuple[Finding, ...] = findings_after_the_grace(watch).findings or ()

    group = watch.config.limits().groups[0]
    assert all(f.bytes == (f.block_count or 0) * group.block_bytes for f in findings)
    assert all(f.since_clock_ns == leaked_ns for f in findings)
    assert all(f.since_wall_seconds is None for f in findings), "a virtual clock has no wall time"
    assert all(f.found_clock_ns >= leaked_ns + 2 * NS for f in findings)


def test_evidence_survives_the_rings_in_which_it_was_found() -> None:
    watch = leaking_engine()
    first = findings_after_the_grace(watch).findings or ()
    ring = watch.ledger.limits.event_records

    for start in range(0, 2 * ring, ring // 2):
        watch.ledger.begin()
        for serial in range(start + 1, start + ring // 2 + 1):
            watch.ledger.event(Event.ADMITTED, serial)
        watch.ledger.end()
        watch.clock.advance(NS)
        again = watch.look().findings or ()

    assert [(f.owner, f.candidates) for f in again] == [(f.owner, f.candidates) for f in first]


def test_without_a_trace_of_who_gave_blocks_back_that_is_said() -> None:
    watch = ToyWatch()
    block = watch.toy.table(watch.admit(1))[0]
    watch.admit(1, shared=[block])
    watch.ledger.begin()
    watch.toy.stamp(block)
    watch.ledger.blocks.ref_count[block] += 1
    watch.ledger.end()

    (finding,) = watch.looks(5).findings or ()

    assert finding.owner is None
    assert finding.candidates == ()
    assert "no event is known" in finding.known


def test_when_the_engine_is_dead_the_last_state_still_names_the_owner() -> None:
    watch = leaking_engine()

    findings = source_over(watch.ledger, live=False).look().findings or ()

    assert {f.owner.ended for f in findings if f.owner} == {"cancelled:disconnect"}


def test_a_leak_that_grows_says_by_how_much() -> None:
    watch = ToyWatch(capacity=200, max_requests=100)
    for _ in range(20):
        watch.skip_free(watch.admit(2))
        watch.look()

    findings = watch.looks(4).findings or ()

    rates = {f.blocks_per_minute for f in findings}
    assert len(rates) == 1, "the growth is the kind's, not one finding's"
    assert 60 < (rates.pop() or 0) <= 120
