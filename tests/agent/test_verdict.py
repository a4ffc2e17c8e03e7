"""The verdict of one sample: the gravest thing that is true, with its evidence and one action."""

from __future__ import annotations

from kvledger.words import Action, Reason, RequestState, Verdict
from kvledger_agent.observation import VerdictView
from kvledger_agent.verdict.rulings import SECOND_LOOK
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch, RealWatch, ToyWatch


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
