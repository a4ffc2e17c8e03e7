"""The verdict of one sample: the gravest thing that is true, with its evidence and one action."""

from __future__ import annotations

import io

from rich.console import Console

from kvledger.words import Action, Reason, RequestState, Verdict
from kvledger_agent.documents import verdict_document
from kvledger_agent.observation import VerdictView
from kvledger_agent.screen import engine_panel
from kvledger_agent.verdict.rulings import SECOND_LOOK
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch, RealWatch, ToyWatch, source_over


def verdict(view: VerdictView | None) -> tuple[Verdict, Action]:
    assert view is not None
    assert view.evidence
    return view.verdict, view.action


def test_an_engine_at_work_is_healthy_and_so_is_an_idle_one() -> None:
    watch = RealWatch()
    watch.publish()
    assert verdict(watch.look(0.5).verdict) == (Verdict.HEALTHY, Action.NONE)

    watch.publish(idle=True)
    assert verdict(watch.look(900).verdict) == (Verdict.HEALTHY, Action.NONE)


def test_work_without_a_heartbeat_for_three_seconds_is_frozen() -> None:
    watch = RealWatch()
    watch.publish()

    assert verdict(watch.look(2.9).verdict) == (Verdict.HEALTHY, Action.NONE)
    assert verdict(watch.look(3.5).verdict) == (Verdict.FROZEN, Action.LOOK_DOWNSTREAM)


def test_an_engine_that_steps_without_a_token_while_requests_wait_is_stalled() -> None:
    watch = EngineWatch(max_num_seqs=1)
    for name in ("one", "two"):
        watch.loop.submit(NewRequest(request_id=name, prompt=[1, 2, 3], max_tokens=40))
    watch.loop.step()
    watch.look()
    watch.clock.advance(NS)
    watch.loop.step()
    assert verdict(watch.look().verdict) == (Verdict.HEALTHY, Action.NONE)

    for _ in range(4):
        watch.clock.advance(NS)
        watch.ledger.publish_now(idle=False)

    assert verdict(watch.look().verdict) == (Verdict.STALLED, Action.LOOK_DOWNSTREAM)


def prefilling(prompt_tokens: int = 56, budget: int = 2) -> EngineWatch:
    """A prompt that is computed in small pieces, a piece a second, and a request that waits behind it."""
    watch = EngineWatch(max_num_seqs=1, max_num_batched_tokens=budget)
    watch.submit(NewRequest(request_id="long", prompt=[1] * prompt_tokens, max_tokens=4))
    watch.step()
    watch.submit(NewRequest(request_id="waits", prompt=[2, 3], max_tokens=4))
    return watch


def test_a_long_prompt_in_small_pieces_is_progress_though_nobody_gets_a_token_or_is_admitted() -> None:
    watch = prefilling()

    for _ in range(20):
        watch.clock.advance(NS)
        watch.step()
        view = watch.look().verdict
        assert view is not None
        assert view.verdict is not Verdict.STALLED, view.evidence
    assert not watch.outcome.tokens, "twenty seconds, and no token yet"
    assert view is not None
    assert view.reason is Reason.BATCH_SLOTS, view

    for _ in range(4):
        watch.clock.advance(NS)
        watch.ledger.publish_now(idle=False)
    assert verdict(watch.look().verdict) == (Verdict.STALLED, Action.LOOK_DOWNSTREAM)


def test_one_look_at_a_long_prompt_in_small_pieces_sees_no_stall_either() -> None:
    watch = prefilling()
    for _ in range(9):
        watch.clock.advance(NS)
        watch.step()

    view = source_over(watch.ledger).look().verdict

    assert view is not None
    assert view.verdict is not Verdict.STALLED


def test_a_verdict_says_what_to_do_wherever_it_is_shown() -> None:
    watch = prefilling()
    for _ in range(20):
        watch.clock.advance(NS)
        watch.step()
        seen = watch.look()
    assert seen.verdict is not None
    assert seen.verdict.to_do.startswith("raise max_num_seqs step by step")

    document = verdict_document(seen.verdict)
    screen = Console(width=200, file=io.StringIO())
    screen.print(engine_panel(seen))

    assert document is not None
    assert document["to_do"] == seen.verdict.to_do
    assert f"to do: {seen.verdict.to_do}" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_long_quiet_time_before_the_first_request_is_no_stall() -> None:
    watch = EngineWatch()
    watch.clock.advance(1000 * NS)
    watch.loop.submit(NewRequest(request_id="one", prompt=[1, 2, 3], max_tokens=4))

    assert verdict(watch.look().verdict) == (Verdict.HEALTHY, Action.NONE)


def test_a_leak_asks_to_be_fixed() -> None:
    watch = ToyWatch()
    watch.skip_free(watch.admit(2))

    assert verdict(watch.looks(5).verdict) == (Verdict.LEAKING, Action.FIX_LEAK)


def test_healthy_says_how_much_room_there_is_and_where_request_time_went() -> None:
    watch = EngineWatch(max_num_seqs=1)
    for name in ("one", "two"):
        watch.loop.submit(NewRequest(request_id=name, prompt=[1, 2, 3], max_tokens=40))
    watch.loop.step()
    first = watch.look().verdict
    watch.clock.advance(NS)
    watch.loop.step()

    view = watch.look().verdict

    assert first is not None
    assert first.missing == (SECOND_LOOK,), "nothing that is counted says anything at one look"
    assert verdict(view) == (Verdict.HEALTHY, Action.NONE)
    assert view is not None
    assert view.reason is Reason.LIGHT
    assert view.evidence.startswith("nobody waits long")
    assert view.missing == ()
    assert view.request_time is not None


def test_a_suspicion_is_no_verdict_but_nobody_is_told_that_nothing_leaks() -> None:
    watch = ToyWatch()
    watch.skip_free(watch.admit(2))

    seen = watch.look()

    assert verdict(seen.verdict) == (Verdict.HEALTHY, Action.NONE)
    assert seen.verdict is not None
    assert seen.verdict.evidence.endswith("; suspicions under watch: 2")
    assert seen.in_doubt
    assert not watch.final().look().in_doubt


def test_of_an_engine_that_is_gone_nothing_is_known_but_its_leaks() -> None:
    healthy = ToyWatch()
    healthy.admit(2)
    leaking = ToyWatch()
    leaking.skip_free(leaking.admit(2))

    assert verdict(healthy.final().look().verdict) == (Verdict.UNKNOWN, Action.NONE)
    told = leaking.final().look().verdict
    assert verdict(told) == (Verdict.LEAKING, Action.FIX_LEAK)
    assert told is not None
    assert told.evidence.startswith("the engine is dead; in its last state: excess_reference on ")


def test_a_running_request_alone_is_no_stall() -> None:
    watch = ToyWatch()
    slot = watch.admit(1)
    assert watch.toy.slots.state[slot] == RequestState.RUNNING

    assert verdict(watch.looks(30).verdict) == (Verdict.HEALTHY, Action.NONE)
