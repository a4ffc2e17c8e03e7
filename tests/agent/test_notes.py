"""Notes: a prefix that keeps much of the pool, and sharing that costs more than it saves, are told and are no leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvledger.words import CancelCause, NoteKind, Verdict
from kvledger_agent.audit_facts import AuditFacts
from kvledger_agent.evidence import Registry
from kvledger_agent.notes import LEAST_ADMISSIONS, Sources, notes_of
from kvledger_agent.observation import Observation
from kvledger_agent.sharing_account import PrefixAccount, SharingView
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch


def sharing(prefix_tokens: int) -> Observation:
    """Three requests that share a prefix, in a pool of 64 blocks of four tokens."""
    watch = EngineWatch(capacity_blocks=64, max_model_len_tokens=256, max_num_batched_tokens=256, vocab_size=256)
    prompt = [1 + position % 50 for position in range(prefix_tokens)]
    for number in range(3):
        watch.loop.submit(NewRequest(request_id=f"r{number}", prompt=[*prompt, 60 + number], max_tokens=40))
        for _ in range(3):
            watch.clock.advance(NS)
            watch.loop.step()
    return watch.look()


def test_a_prefix_that_several_requests_share_is_noted_once_it_is_a_quarter_of_the_pool() -> None:
    size = EngineWatch(capacity_blocks=64).ledger.limits.groups[0].block_size_tokens
    small, large = sharing(8 * size), sharing(20 * size)

    assert small.notes == ()
    assert large.notes is not None
    (note,) = large.notes
    assert (note.kind, note.blocks) == (NoteKind.PREFIX_PINNING, 20)
    assert note.request is not None
    assert note.request.id_head == "r0", "who brought it in"
    assert large.verdict is not None
    assert large.verdict.verdict is not Verdict.LEAKING
    assert large.findings == ()


def account(admissions: int, saved: float) -> SharingView:
    whole = PrefixAccount(
        prefix=None, admissions=admissions, hits=1, queried_tokens=1, hit_tokens=1, forks=0,
        forked_tokens=0, saved_bytes=None, copied_blocks=0,
        copied_bytes=None, lookup_seconds=1.0, reference_seconds=0.0, index_seconds=0.0, copy_seconds=0.0,
        overhead_seconds=1.0, saved_seconds=saved, net_seconds=saved - 1.0,
    )  # fmt: skip
    return SharingView(seconds_per_prompt_token=1e-3, prefixes=(), others=whole, total=whole)


def test_sharing_that_costs_more_than_it_saves_is_noted_when_enough_requests_say_so() -> None:
    nothing = AuditFacts(
        published_seq=1, longest_free_run_blocks=64, group_active_blocks=(0,), group_shared_blocks=(0,),
        pinned_only_blocks=0, held_blocks=np.zeros(0),
    )  # fmt: skip
    registry = Registry(EngineWatch().source.reader.sample().slots, None, ("other",))
    known = Sources(nothing, 64, account(LEAST_ADMISSIONS, saved=0.1))

    (note,) = notes_of(known, registry)

    assert note.kind is NoteKind.SHARING_COSTS_MORE
    assert notes_of(replace(known, sharing=account(LEAST_ADMISSIONS, saved=2.0)), registry) == ()
    assert notes_of(replace(known, sharing=account(LEAST_ADMISSIONS - 1, saved=0.1)), registry) == ()


def test_a_leak_names_the_event_that_should_have_released_the_blocks_and_how_the_request_ended() -> None:
    watch = EngineWatch(fault=FaultPlan(FaultKind.SKIPPED_FREE))
    watch.loop.submit(NewRequest(request_id="gone", prompt=[1] * 20, max_tokens=30, tenant="acme"))
    watch.loop.step()
    watch.loop.cancel(["gone"], CancelCause.DISCONNECT)
    for _ in range(6):
        watch.clock.advance(NS)
        watch.ledger.publish_now(idle=True)
        seen = watch.look()

    assert seen.findings is not None
    (finding,) = seen.findings
    assert finding.owner is not None
    assert finding.owner.ended == "cancelled:disconnect"
    assert finding.release is not None
    assert (finding.release.event, finding.release.blocks) == ("released", finding.block_count)
    assert finding.release.seq <= finding.seq
    assert seen.verdict is not None
    assert (
        "of request 1 (tenant acme, cancelled:disconnect), should have come back in publication"
        in seen.verdict.evidence
    )
