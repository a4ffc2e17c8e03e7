"""Steps work on arrays: what runs in one is the same however many sequences it has."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from bench.steady import Load, Open, SteadyEngine, no_compute
from bench.tmpfs import ledger_directory
from kvledger_engine.computes import ModelOptions, open_compute

pytestmark = pytest.mark.needs("tmpfs")
LOAD = Load(prompt_tokens=(40, 40), max_model_len_tokens=4096)
STEPS, SEQUENCES = 40, 96
OURS = ("/kvledger/", "/kvledger_engine/")


def lines_of(work: Callable[[], object]) -> Counter[tuple[str, int]]:
    """How often each line of the engine's and the ledger's code runs in `work`, each turn of a loop counted."""
    seen: Counter[tuple[str, int]] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not any(folder in code.co_filename for folder in OURS):
            return None
        if event == "line":
            seen[code.co_qualname, frame.f_lineno] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen


def decode_steps(sequences: int, opened: Open) -> Iterator[Counter[tuple[str, int]]]:
    """The lines of each of some steps in which all sequences decode, block boundaries among them."""
    with ledger_directory() as directory:
        engine = SteadyEngine(directory, sequences=sequences, load=LOAD, open_compute=opened)
        try:
            for _ in range(STEPS):
                yield lines_of(engine.loop.step)
        finally:
            engine.close()


def embedded(config: Any) -> Any:
    return open_compute(config, ModelOptions())


@pytest.mark.parametrize("opened", [no_compute, embedded])
def test_no_line_of_a_decode_step_runs_as_often_as_there_are_sequences(opened: Open) -> None:
    steps = list(decode_steps(SEQUENCES, opened))
    assert len({frozenset(step) for step in steps}) > 1, "no step began a block"
    for number, step in enumerate(steps):
        assert {line: turns for line, turns in step.items() if turns > SEQUENCES // 2} == {}, number


def test_a_loop_over_sequences_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(turns: int) -> int:
        return sum(number for number in range(turns))

    monkeypatch.setattr(f"{__name__}.OURS", ("test_vectorised",))
    assert max(lines_of(lambda: loop(SEQUENCES)).values()) >= SEQUENCES
