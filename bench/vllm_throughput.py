"""Output tokens a second of one vLLM server with the plugin against without: `python -m bench.vllm_throughput`.

One server process a model under load from the official client; between two windows of some steps the hooks are taken
out of its engine core or put in again, which then tell everything anew: that is not measured. Tokens are counted and
timed where they leave the engine core. Every window proves which kind it was. In vLLM's environment.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from bench.answers import Answer, answering
from bench.checkpoints import MIDDLE, TINY, Checkpoint
from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows
from bench.tmpfs import ledger_directory
from bench.vllm_waves import Shape, under_load
from bench.vllmenv import version
from kvledger.reader import Reader
from kvledger_agent.scrape.page import parse_page
from tests.vllm.conductor import TOGGLE, Conductor
from tests.vllm.server import VllmServer, vllm_server
from tests.vllm.toggle import Pace

BLOCKS = 2049
LIMITS = ("--max-model-len", "2048", "--max-num-batched-tokens", "2048", "--disable-uvicorn-access-log")
_PREEMPTIONS = "vllm:num_preemptions_total"
_MESSAGES_A_STEP = 1
_MANY_REQUESTS = 1 << 15
WINDOWS_A_ROUND = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, its load, and how long it is measured. Two arrivals, or one, are in each window."""

    model: Checkpoint
    shape: Shape
    pace: Pace
    rounds: int

    @property
    def name(self) -> str:
        """As it is in the table."""
        return f"{self.model.name}, {self.shape.running} running"


SUBJECTS = (
    Subject(
        model=TINY,
        shape=Shape(running=64, output_tokens=512),
        pace=Pace(steps=128, settling=32, ramp=544),
        rounds=5,
    ),
    Subject(
        model=MIDDLE,
        shape=Shape(running=32, output_tokens=256),
        pace=Pace(steps=32, settling=8, ramp=272),
        rounds=5,
    ),
)


def measure(effort: Effort) -> Answer:
    """Output tokens a second and seconds a step in the windows of each kind, for each model."""
    figures: dict[str, Windows] = {}
    rounds = effort.rounds(sum(subject.rounds for subject in SUBJECTS), len(SUBJECTS))
    messages = 0.0
    for subject in SUBJECTS:
        name, steps = subject.name, subject.pace.steps
        windows = _windows(subject, islice(rounds, effort.choose(subject.rounds, 1)))
        for window in windows:
            _check(window, steps)
        for kind, plugged in (("without", False), ("with", True)):
            of_kind = [window for window in windows if window["plugged"] is plugged]
            figures[f"{name}, {kind}"] = np.array([window["tokens"] / window["seconds"] for window in of_kind])
            figures[f"{name}, {kind}, step"] = np.array([window["seconds"] / steps for window in of_kind])
        messages = float(np.median([window["messages"] / steps for window in windows if window["plugged"]]))
    return Answer(
        figures, (f"vLLM {version()}", f"{messages:.3g} messages of the tap a step, those of arrivals included")
    )


def _windows(subject: Subject, rounds: Iterable[int]) -> list[dict[str, Any]]:
    with ledger_directory() as directory, closing(Conductor(hook=TOGGLE)) as conductor:
        subject.model.save(directory / "model")
        # Who ends while the hooks are out is never told of.
        environment = {**conductor.environment, "KVLEDGER_MAX_REQUESTS": str(_MANY_REQUESTS)}
        with vllm_server(
            directory / "model",
            directory / "ledgers",
            directory / "log",
            blocks=BLOCKS,
            arguments=(*LIMITS, "--max-num-seqs", str(subject.shape.running)),
            environment=environment,
        ) as server:
            over: list[dict[str, Any]] = []
            for _ in rounds:
                over += under_load(server.url, subject.shape, lambda: conductor.windows(WINDOWS_A_ROUND, subject.pace))
            _check_server(server)
    return over


def _check(window: Mapping[str, Any], steps: int) -> None:
    """That a window was of the kind it is counted as. Raises `BenchError`."""
    messages = window["messages"]
    if window["plugged"]:
        if not window["traces"] or messages < _MESSAGES_A_STEP * (steps - 1):
            raise BenchError(f"{messages} messages in {steps} steps: the instrument was not in as it should be")
    elif window["traces"] or messages:
        raise BenchError(f"the instrument was not taken out: {messages} messages, {window['traces']}")


def _check_server(server: VllmServer) -> None:
    """That the load was one of decoding, and the ledger is whole. Raises `BenchError`."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        preemptions = parse_page(answer.read(), (_PREEMPTIONS,)).sum(_PREEMPTIONS)
    if preemptions != 0:
        raise BenchError(f"{preemptions} preemptions: the pool is too small for this load")
    with Reader.open(server.ledger()) as reader:
        if failure := reader.sample().instrument_failure:
            raise BenchError(f"the instrument failed: {failure}")


if __name__ == "__main__":
    answering(measure)
