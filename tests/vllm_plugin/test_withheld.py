"""An update with nothing but a token for each request comes with the next schedule, if one is sure to come."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kvledger_vllm.message import SCHEDULE, UPDATE
from tests.vllm_plugin.tokenrig import Asked, TokenRig


def going(names: str = "ab") -> TokenRig:
    """Requests that have a token each; from now on a message may wait for the next one."""
    rig = TokenRig()
    for name in names:
        rig.admit(Asked(name, 4))
    rig.update(rig.schedule(dict.fromkeys(names, 4)), list(names))
    rig.at_once = False
    return rig


def test_a_steady_step_is_one_message_with_the_times_of_both_its_publications() -> None:
    rig = going()
    sent = rig.channel.sent
    for _ in range(10):
        rig.update(rig.schedule({"a": 1, "b": 1}), ["a", "b"])
    assert rig.channel.sent - sent == 10
    assert rig.true() != rig.seen(), "the last one waits"
    rig.tap.tell()
    assert (rig.seen(), rig.generated(), rig.corrections()) == (rig.true(), 22, 0)
    kinds = [message.kind for message in rig.channel.messages[-20:]]
    assert kinds == [SCHEDULE, UPDATE] * 10
    times = [message.now_ns for message in rig.channel.messages]
    assert times == sorted(times)
    assert rig.reader.sample().stats.whole("steps") == 11


def ended(rig: TokenRig) -> None:
    rig.end("a")


def arrived(rig: TokenRig) -> None:
    rig.admit(Asked("c", 4))


@pytest.mark.parametrize("call", [ended, arrived])
def test_every_other_call_is_told_of_at_once_with_what_waited_before_it(call: Callable[[TokenRig], None]) -> None:
    rig = going()
    rig.update(rig.schedule({"a": 1, "b": 1}), ["a", "b"])
    call(rig)
    assert (rig.seen(), rig.corrections()) == (rig.true(), 0)
    assert rig.generated() == 4


def test_a_second_output_without_a_schedule_between_does_not_wait_behind_the_first() -> None:
    rig = going()
    first, second = rig.schedule({"a": 1, "b": 1}), rig.schedule({"a": 1, "b": 1})
    rig.update(first, ["a", "b"])
    rig.update(second, ["a", "b"])
    assert (rig.seen(), rig.generated()) == (rig.true(), 6)


@pytest.mark.parametrize("stands", ["paused", "nobody runs", "a count of its own"])
def test_an_update_after_which_no_schedule_is_sure_to_come_is_told_of_at_once(stands: str) -> None:
    rig = going()
    output, names = rig.schedule({"a": 1, "b": 1}), ["a", "b"]
    if stands == "paused":
        rig.scheduler._pause_state = SimpleNamespace(name="PAUSED_ALL")  # type: ignore[attr-defined]
    elif stands == "nobody runs":
        rig.scheduler.running.clear()
    else:
        names = ["a"]
    rig.update(output, names)
    assert (rig.seen(), rig.generated()) == (rig.true(), 2 + len(names))
