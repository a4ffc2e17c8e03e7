"""Looking again while a suspicion is open, and saying so to whoever waits at a terminal."""

from __future__ import annotations

import os
import sys

import pytest

from kvledger_agent import patience
from kvledger_agent.patience import look_until_decided
from tests.agent.rig import ToyWatch


def said_on(terminal: bool, watch: ToyWatch, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the looks say on stderr, a real terminal or a pipe."""
    reader, writer = os.openpty() if terminal else os.pipe()
    monkeypatch.setattr(patience, "INTERVAL_SECONDS", 0.01)
    with os.fdopen(writer, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        (observation,) = look_until_decided(lambda: (watch.look(),))
        assert not observation.in_doubt
        print("end", file=stderr, flush=True)
        said = ""
        while "end" not in said:
            said += os.read(reader, 4096).decode()
    os.close(reader)
    return said


def suspicious() -> ToyWatch:
    watch = ToyWatch()
    watch.skip_free(watch.admit(2))
    return watch


def test_at_a_terminal_the_watching_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_on(True, suspicious(), monkeypatch).splitlines()

    assert said == ["watching 2 suspicions for up to 0.3 s …", "end"]


def test_to_a_pipe_and_of_a_sound_engine_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_on(False, suspicious(), monkeypatch) == "end\n"
    assert said_on(True, ToyWatch(), monkeypatch).splitlines() == ["end"]
