"""Looking again while a suspicion is open, for as long as the grace lasts, and saying so to whoever waits."""

from __future__ import annotations

import dataclasses

import pytest

from kvledger_agent import patience
from kvledger_agent.observation import Observation
from kvledger_agent.patience import MOST_LOOKS, look_until_decided, looks_needed
from tests.agent.rig import ToyWatch


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once; the engine's own clock is the toy's."""
    monkeypatch.setattr(patience, "INTERVAL_SECONDS", 0.01)


def suspicious() -> ToyWatch:
    watch = ToyWatch()
    watch.skip_free(watch.admit(2))
    return watch


def test_a_suspicion_is_watched_until_it_is_decided_and_that_is_said_once_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = suspicious()
    (observation,) = look_until_decided(lambda: (watch.look(),))
    assert not observation.in_doubt
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "2 suspicions" in line
    assert "--save RECORDING" in line


def test_of_a_sound_engine_nothing_is_said_and_one_look_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    watch, looks = ToyWatch(), list[Observation]()

    def look() -> list[Observation]:
        looks.append(watch.look())
        return looks[-1:]

    look_until_decided(look)
    assert len(looks) == 1
    assert capsys.readouterr().err == ""


def test_an_engine_with_slow_steps_is_watched_for_its_longer_grace_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "INTERVAL_SECONDS", 1.0)
    observation = suspicious().look()
    assert observation.in_doubt

    def looks(grace_seconds: float) -> int:
        return looks_needed([dataclasses.replace(observation, grace_seconds=grace_seconds)])

    assert looks(51.0) > 51
    assert looks(2.0) < looks(51.0) < looks(1e9) == MOST_LOOKS
