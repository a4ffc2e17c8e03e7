"""Whatever of the instrument fails, and whenever: vLLM's scheduler does what it does without it, and is told once."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import kvledger
import kvledger_vllm
from kvledger_vllm import attach as attaching
from kvledger_vllm.attach import Instrument, attach
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.toggle import traces
from tests.vllm.truth import differences, truth_of

OURS = tuple(str(Path(str(package.__file__)).parent) for package in (kvledger, kvledger_vllm))
CALLS, LIVE, SEED = 32, 6, 23
WHERE_ERRORS_END = {"attach", "Hooks._enter", "Hooks._leave", "Hooks._shutdown", "Hooks.stop", "_lasting"}
"""What is around the instrument's own code, beside the wrappers and the switch: nothing in it can fail."""


class Planted(Exception):
    """What a test raises in the instrument."""


class NoMirror:
    """In the place of the mirror's process, which has tests of its own: a message is as good as applied."""

    def __init__(self, *_: Any) -> None:
        self.pid = 0

    def ended(self, now_ns: int, *, surely: bool) -> str:
        """It has not."""
        return ""

    def await_applied(self, seconds: float) -> bool:
        """It is."""
        return True

    def end(self, seconds: float) -> None:
        """Nothing to end."""


class Pair:
    """Two schedulers of vLLM's that are asked the same; the first may have an instrument."""

    def __init__(self, model: Path) -> None:
        self.both = [BareScheduler(model, blocks=33, seed=SEED, max_num_seqs=4) for _ in range(2)]
        self.watched = self.both[0].scheduler
        self._made = 0

    def work(self) -> None:
        """So many calls: arrivals with a shared beginning, aborts, a reset, steps; preemptions come by themselves."""
        for number in range(CALLS):
            if number % 4 == 0 and len(self.watched.requests) < LIVE:
                self._made += 1
                prompt = [5 + at % 300 for at in range(70)] + [3 + self._made % 500] * 20
                self._ask(partial(BareScheduler.add, request_id=f"r{self._made}", prompt=prompt, max_tokens=60))
            elif number % 13 == 12 and self.watched.requests:
                self._ask(methodcaller("abort", next(iter(self.watched.requests))))
            elif number == 30:
                self._ask(lambda bare: bare.scheduler.reset_prefix_cache())
            self._ask(BareScheduler.step)

    def _ask(self, call: Callable[[BareScheduler], Any]) -> None:
        answers = [call(bare) for bare in self.both]
        assert answers[0] == answers[1]
        watched, alone = (truth_of(bare.scheduler) for bare in self.both)
        assert differences(alone, watched) == {}


Watch = Callable[[FrameType, str, Any], None]


@contextmanager
def watching(each: Callable[[CodeType], None]) -> Iterator[None]:
    """Tells of every call of a function of ours; what `each` raises, that function raises."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            each(frame.f_code)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def may_fail(code: CodeType) -> bool:
    """Not so the wrappers, which are vLLM's call itself, and where errors end."""
    names = WHERE_ERRORS_END
    return "original" not in code.co_freevars and code.co_qualname not in names and "Switch." not in code.co_qualname


def played(pair: Pair, directory: Path, name: str, each: Callable[[CodeType], None]) -> Instrument:
    """An instrument from its start to its end; then the scheduler is as it was, and the ledger is nobody's."""
    with watching(each):
        instrument = attach(pair.watched, Settings(directory=directory, engine=name))
        pair.work()
        if instrument.stop is not None:
            instrument.stop()
    del pair.watched.kvledger
    assert traces(pair.watched) == []
    if instrument.ledger is not None:
        instrument.ledger.leave(clean=False)
    return instrument


class Said(logging.Handler):
    """Errors that the instrument has logged. vLLM's loggers pass nothing on to pytest's."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[Said]:
    handler, logger = Said(), logging.getLogger("vllm.kvledger")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def pair(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(attaching, "Companion", NoMirror)
    return Pair(tiny_model)


def test_an_error_in_any_function_of_the_instruments_changes_nothing_in_vllm_and_is_told_once(
    pair: Pair, ledger_directory: Path, said: Said
) -> None:
    calls: Counter[CodeType] = Counter()
    assert played(pair, ledger_directory, "sound", lambda code: calls.update([code])).switch.why == ""
    failed = 0
    for number, (code, times) in enumerate(calls.items()):
        if may_fail(code):
            # The first call of each is often that of the start: let another one fail.
            for at in {1, 1 + times // 2}:
                failed += fails(pair, ledger_directory, said, code, at, f"{number}-{at}")
    assert failed > 100


def fails(pair: Pair, directory: Path, said: Said, code: CodeType, at: int, name: str) -> bool:
    """One function fails at one of its calls. False where it was not called so often this time."""
    left = at

    def plant(called: CodeType) -> None:
        nonlocal left
        left -= called is code
        if called is code and left == 0:
            raise Planted(code.co_qualname)

    said.lines.clear()
    instrument = played(pair, directory, name, plant)
    if left > 0:
        assert (instrument.switch.why, said.lines) == ("", []), code
        return False
    assert instrument.switch.why == f"Planted: {code.co_qualname}"
    assert said.lines == [f"the instrument switched itself off, vLLM goes on: {instrument.switch.why}"]
    if instrument.ledger is not None and instrument.hooks is not None:
        assert bytes(instrument.ledger.instrument.failure[0]).decode() == instrument.switch.why
    return True
