"""Row `throughput`: output tokens a second of the embedded engine over HTTP. A reference for its own machine only."""

from __future__ import annotations

import asyncio
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import estimate
from bench.result import Quantity, Result
from bench.streams import Streams
from bench.tmpfs import ledger_directory
from kvledger.reader import Reader
from kvledger.snapshot import Sample
from kvledger_agent.up.child import Child

NAME = "throughput"
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS, VOCABULARY = 64, 128, 512, 256
READY_SECONDS, STOP_SECONDS, WARM_UP_SECONDS, WINDOW_SECONDS = 30.0, 15.0, 2.0, 1.0
HOW = f"""Machine-dependent, no bar: a reference for later changes on the same machine. `kvledger engine` with the cell
model and no step time, {STREAMS} streams of {PROMPT_TOKENS} prompt and {OUTPUT_TOKENS} output tokens, each begun anew
when it ends; windows of {WINDOW_SECONDS:g} s of the ledger's own token counter and clock. Engine core, HTTP process
and clients share the cores of the machine."""


def measure(effort: Effort) -> list[Result]:
    """Windows of one second under full load."""
    with ledger_directory() as directory:
        engine = Child("engine", _arguments(directory / "ledgers"), log=directory / "engine.log")
        try:
            ready = engine.first_line(READY_SECONDS)
            samples, events = asyncio.run(_watch(ready, effort))
        finally:
            engine.stop(STOP_SECONDS)
    return [_result(samples, events)]


def _arguments(directory: Path) -> list[str]:
    sizes = {"--blocks": 8192, "--max-num-seqs": STREAMS, "--max-model-len": 1024, "--port": 0}
    flags = [str(part) for pair in sizes.items() for part in pair]
    return ["engine", "--json", "--model", "cell", "--name", "throughput", "--directory", str(directory), *flags]


async def _watch(ready: dict[str, Any], effort: Effort) -> tuple[list[Sample], list[int]]:
    """Samples of the ledger at the ends of the windows, and the events the clients had read by then."""
    streams = Streams(
        str(ready["url"]),
        count=STREAMS,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        vocabulary=VOCABULARY,
    )
    with closing(Reader.open(Path(ready["ledger"]))) as reader:
        async with streams:
            await asyncio.sleep(WARM_UP_SECONDS)
            samples, events = [reader.sample()], [streams.events]
            for _ in effort.rounds(full=30, quick=4):
                await asyncio.sleep(WINDOW_SECONDS)
                streams.require_all()
                samples.append(reader.sample())
                events.append(streams.events)
    return samples, events


def _result(samples: list[Sample], events: list[int]) -> Result:
    rates, read, running = [], [], []
    for number, (before, after) in enumerate(pairwise(samples)):
        seconds = (after.clock_ns - before.clock_ns) / 1e9
        if seconds <= 0:
            raise BenchError("the engine published nothing for a whole window")
        rates.append((_tokens(after) - _tokens(before)) / seconds)
        read.append((events[number + 1] - events[number]) / seconds)
        running.append(float(after.stats.whole("running")))
    return Result(
        row=NAME,
        name=f"output tokens of the cell model at {STREAMS} streams over HTTP (machine-dependent)",
        estimate=estimate(rates),
        unit="tokens/s",
        how=HOW,
        quantities=(
            Quantity("stream events read by the clients", estimate(read), "1/s"),
            Quantity("sequences running at the end of a window", estimate(running), ""),
        ),
    )


def _tokens(sample: Sample) -> float:
    tokens = sample.stats.counter("generation_tokens_total")
    if tokens is None:
        raise BenchError("the ledger does not count generated tokens")
    return tokens
