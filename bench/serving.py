"""Rows `serving-tiny` and `serving-101m`: output tokens a second, ours over HTTP against vLLM's and `transformers`."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench import vllmenv
from bench.asked import asking
from bench.checkpoints import MIDDLE, TINY, Checkpoint
from bench.closed import Closed
from bench.effort import Effort
from bench.errors import NotHere
from bench.estimate import Windows, estimate
from bench.goals import Goal
from bench.interleave import interleave
from bench.rest import await_rest
from bench.result import Quantity, Result
from bench.servers import BOTH_CORES, SERVED, our_server, vllm_server
from bench.tmpfs import ledger_directory

OURS, VLLM, VLLM_ALL, BATCHING, PRODUCTS = "ours", "vllm", "vllm on all cores", "transformers", "products"
TRANSFORMERS_GOAL = Goal(bar=2.0, stretch=5.0)
BOUND_GOAL = Goal(bar=0.6, stretch=0.8)

Window = Callable[[int], float]
_WAKING = 1 << 20
"""Added to a window's seed, the seed of the prompt that goes before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One row: a checkpoint, the load, the rounds of a full run, and what is promised against vLLM."""

    name: str
    checkpoint: Checkpoint
    load: Closed
    batching: Closed
    rounds: int
    goal: Goal
    bound: bool = False

    def measure(self, effort: Effort) -> list[Result]:
        """Windows of all in turns. Raises `NotHere` where there is no vLLM."""
        vllmenv.vllm_python()
        if find_spec("transformers") is None:
            raise NotHere("transformers is not here: install the development dependencies")
        with tempfile.TemporaryDirectory() as checkpoint, ledger_directory() as directory, ExitStack() as stack:
            self.checkpoint.save(Path(checkpoint))
            windows, facts = self._started(Path(checkpoint), directory, stack)
            for window in windows.values():
                window(0)
            seeds = iter(range(1, _WAKING))

            def turn(window: Window) -> float:
                await_rest()
                return window(next(seeds))

            turns = {name: partial(turn, window) for name, window in windows.items()}
            figures = interleave(effort.rounds(full=self.rounds, quick=3), turns, swap=True)
        return self.results(figures, facts)

    def _started(
        self, checkpoint: Path, directory: Path, stack: ExitStack
    ) -> tuple[dict[str, Window], tuple[str, ...]]:
        """Everybody who is measured, ready; `stack` ends them."""
        streams, windows, facts = self.load.streams, dict[str, Window](), [f"vLLM {vllmenv.version()}"]
        windows[OURS] = partial(
            self._over_http, stack.enter_context(our_server(checkpoint, directory, name=self.name, streams=streams))
        )
        settings = {VLLM: {}, VLLM_ALL: BOTH_CORES} if self.bound else {VLLM: {}}
        for name, environment in settings.items():
            url = stack.enter_context(
                vllm_server(
                    checkpoint, directory, name=name.replace(" ", "-"), streams=streams, environment=environment
                )
            )
            windows[name] = partial(self._over_http, url)
        asked = {BATCHING: ("bench.transformers_batching", self.batching)}
        if self.bound:
            asked[PRODUCTS] = ("bench.products", self.load)
        for name, (module, load) in asked.items():
            described = json.dumps(dataclasses.asdict(load))
            window, said = stack.enter_context(
                asking(module, str(checkpoint), described, log=directory / f"{name}.log")
            )
            windows[name] = window
            facts.append(said)
        return windows, tuple(facts)

    def _over_http(self, url: str, seed: int) -> float:
        """A window right behind an answer to one client, which wakes the server: under load none of them sleeps."""
        self.load.alone().window(url, SERVED, seed + _WAKING)
        return self.load.window(url, SERVED, seed)

    def results(self, figures: dict[str, Windows], facts: tuple[str, ...]) -> list[Result]:
        """The lines of the table."""
        rates = tuple(
            Quantity(f"output tokens a second, {name}", estimate(of), "tokens/s") for name, of in figures.items()
        )
        found = [self._line("vLLM", figures[OURS] / figures[VLLM], self.goal, facts, rates)]
        if VLLM_ALL in figures:
            ratio = estimate(figures[OURS] / figures[VLLM_ALL])
            found[0] = dataclasses.replace(
                found[0], quantities=(*found[0].quantities, Quantity("ours over vllm on all cores", ratio, "×"))
            )
        found.append(self._line("transformers", figures[OURS] / figures[BATCHING], TRANSFORMERS_GOAL, facts, ()))
        if PRODUCTS in figures:
            found.append(
                self._line("its matrix products alone", figures[OURS] / figures[PRODUCTS], BOUND_GOAL, facts, ())
            )
        return found

    def _line(
        self, peer: str, ratio: Windows, goal: Goal, facts: tuple[str, ...], quantities: tuple[Quantity, ...]
    ) -> Result:
        return Result(
            row=self.name,
            name=f"output tokens, {self.checkpoint.name}, {self.load.streams} streams: ours over HTTP over {peer}",
            estimate=estimate(ratio),
            unit="×",
            how=self.how(peer, goal),
            bar=goal.bar,
            quantities=(goal.reached(ratio), *quantities),
            facts=facts,
        )

    def how(self, peer: str, goal: Goal) -> str:
        """What ran."""
        load, other = self.load, self.batching
        return f"""{load.streams} streamed completions over HTTP, begun together, of {load.prompt_tokens} random prompt
and {load.output_tokens} output tokens each, greedy, ends ignored; a window is from the first connection to the last
answer's end, each answer's own count of its tokens is checked, and no two windows share a prompt. The same float32
checkpoint ({self.checkpoint.name}, seeded) in all. {_HOW[peer].format(other=other)} All are up during the whole run.
Windows are taken in turns, and each begins when all processes have come to rest (vLLM's workers spin for a second after
their last work) and an answer to one client has woken the server; the clients share the processors with whom they
measure. Each has had a window before the first. Hash seed 0 in all. {goal.text}"""


_HOW = {
    "vLLM": """vLLM's OpenAI server is as it starts by itself (on two cores it computes on one and leaves the other to
its HTTP process), with pools, block sizes and batches of the same size.""",
    "transformers": """`transformers` continuous batching has no HTTP between, which is in its favour; its windows are
of {other.streams} prompts of {other.prompt_tokens} and {other.output_tokens} tokens, its manager is kept, and its cache
is no larger than these need.""",
    "its matrix products alone": """The bound is what the products of the same prompts and decode steps take, with the
weights of all layers in turn, by MKL or oneDNN and on one thread or all, whichever is the fastest in that window.""",
}

TINY_ROW = Serving(
    name="serving-tiny",
    checkpoint=TINY,
    load=Closed(streams=64, prompt_tokens=64, output_tokens=128, vocabulary=TINY.vocabulary),
    batching=Closed(streams=64, prompt_tokens=64, output_tokens=32, vocabulary=TINY.vocabulary),
    rounds=15,
    goal=Goal(bar=1.5, stretch=3.0),
)
MIDDLE_ROW = Serving(
    name="serving-101m",
    checkpoint=MIDDLE,
    load=Closed(streams=32, prompt_tokens=32, output_tokens=64, vocabulary=MIDDLE.vocabulary),
    batching=Closed(streams=32, prompt_tokens=32, output_tokens=16, vocabulary=MIDDLE.vocabulary),
    rounds=5,
    goal=Goal(bar=4.0),
    bound=True,
)
