"""Steps work on arrays: what runs in one is the same however many sequences it has and however many wait."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from bench.steady import NoCompute
from kvledger.words import RequestClass
from kvledger.writer import Ledger
from kvledger_engine.computes import Computing, ModelOptions, open_compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest
from kvledger_engine.quotafile import parse_quotas

STEPS, SEQUENCES, WAITING = 40, 96, 150
CAPACITY = 5 * SEQUENCES
"""Enough for all that run, and less than that for one prompt more of those that wait for blocks."""
TENANTS = ("a", "b", "c")
OURS = ("/kvledger/", "/kvledger_engine/")
QUOTAS = {
    "tenants": {"a": {"weight": 2, "reserved_blocks": 50}, "b": {"max_blocks": 400}, "c": {"priority": 1}},
    "classes": {"interactive": {"may_preempt": False, "step_tokens": 1024}, "batch": {"reuse_window": 1}},
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What an engine has on: its settings, its model (None = a compute that does nothing), what its requests ask for.

    Where it is not 0, `WAITING` further ones of `waiting` prompt tokens wait.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    waiting: int = 0


BUDGETS: Mapping[str, Any] = {"quotas": parse_quotas(QUOTAS)}
SCENES = {
    "control": Scene(),
    "no prefix is shared": Scene(config={"prefix_caching": False}),
    "eviction by depth": Scene(config={"eviction": "prefix"}),
    "swapping": Scene(config={"preemption": "swap", "swap_blocks": 100}),
    "within quotas": Scene(config=BUDGETS),
    "a queue for seats": Scene(config={"max_num_seqs": SEQUENCES}, waiting=40),
    "a queue for blocks": Scene(waiting=5000),
    "a queue within quotas": Scene(config=BUDGETS, waiting=5000),
    "the model": Scene(model="embedded"),
    "sampling": Scene(model="embedded", asked={"temperature": 0.8, "top_p": 0.9}),
    "windows": Scene(model="embedded-windows", config={"capacity_blocks": 2 * CAPACITY}),
}
MOST_TURNS = SEQUENCES // 2


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


def opened(scene: Scene) -> Computing:
    """The compute of a scene, and its configuration."""
    sizes: dict[str, Any] = {
        "capacity_blocks": CAPACITY,
        "block_size_tokens": 16,
        "max_num_seqs": 2 * SEQUENCES,
        "max_num_batched_tokens": 8192,
        "max_model_len_tokens": 8192,
        "max_waiting": 2 * WAITING,
        "vocab_size": 512,
    }
    config = EngineConfig(**(sizes | dict(scene.config)))
    if scene.model is None:
        return Computing(config=config, compute=NoCompute())
    return open_compute(config, ModelOptions(source=scene.model, device="cpu"))


def submit(loop: EngineLoop, first: int, count: int, prompt_tokens: int, asked: Mapping[str, Any]) -> None:
    """So many requests of all tenants and classes, no two with the same beginning."""
    kinds = RequestClass.words()
    refused = loop.submit_many(
        [
            NewRequest(
                request_id=f"r{number}",
                prompt=[1 + number, *[number % 7] * (prompt_tokens + number % 16)],
                max_tokens=4 * STEPS,
                tenant=TENANTS[number % len(TENANTS)],
                request_class=kinds[number // len(TENANTS) % len(kinds)],
                seed=number,
                **asked,
            )
            for number in range(first, first + count)
        ]
    )
    assert refused == []


def decode_steps(scene: Scene) -> Iterator[Counter[tuple[str, int]]]:
    """The lines of each of some steps in which all sequences decode, block boundaries among them."""
    computing = opened(scene)
    ledger = Ledger.in_memory(computing.config.limits())
    loop = EngineLoop(computing.config, ledger, computing.compute)
    submit(loop, 0, SEQUENCES, 20, scene.asked)
    loop.step()
    submit(loop, SEQUENCES, WAITING if scene.waiting else 0, scene.waiting, scene.asked)
    loop.step()
    values, stats = ledger.stats.values, ledger.stats
    for _ in range(STEPS):
        yield lines_of(loop.step)
        assert values[stats.gauge("running")] == SEQUENCES
    assert values[stats.gauge("waiting")] == (WAITING if scene.waiting else 0)
    loop.close()


@pytest.mark.parametrize("name", SCENES)
def test_no_line_of_a_decode_step_runs_as_often_as_there_are_sequences(name: str) -> None:
    steps = list(decode_steps(SCENES[name]))
    assert len({frozenset(step) for step in steps}) > 1, "no step began a block"
    for number, step in enumerate(steps):
        assert {line: turns for line, turns in step.items() if turns > MOST_TURNS} == {}, number


def statement(turns: int) -> None:
    for number in range(turns):
        str(number)


def until(turns: int) -> None:
    while turns:
        turns -= 1


@pytest.mark.parametrize(
    "loop",
    [
        statement,
        until,
        lambda turns: [number for number in range(turns)],  # noqa: C416
        lambda turns: {number: number for number in range(turns)},
        lambda turns: sum(number for number in range(turns)),
        lambda turns: list(map(lambda number: number + 1, range(turns))),  # noqa: C417
    ],
    ids=["for", "while", "list", "dict", "generator", "map"],
)
def test_a_loop_over_sequences_would_be_seen(loop: Callable[[int], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.OURS", ("test_vectorised",))
    assert max(lines_of(lambda: loop(SEQUENCES)).values()) >= SEQUENCES
