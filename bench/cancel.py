"""Release times: how long a cancelled request's blocks stay its own, by state in the core and by way over HTTP.

`python -m bench.cancel` prints both tables; `--write` puts them into docs/cancellation.md.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from bench.cancelcases import CASES, Cancels
from bench.cancelclients import Leavers
from bench.errors import BenchError
from bench.machine import this_machine
from bench.tmpfs import ledger_directory
from kvledger.reader import Reader
from kvledger_agent.up.child import Child

PAGE = Path(__file__).parents[1] / "docs" / "cancellation.md"
MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
STEP, READY_SECONDS, STOP_SECONDS, WAIT_SECONDS = "base=5ms", 30.0, 15.0, 20.0
CORE_HEAD = "| in the core, state | blocks held | cancels | median | p99 |\n|---|---|---|---|---|"
HTTP_HEAD = "| over HTTP | sequences | mean | p50 at most | p99 at most |\n|---|---|---|---|---|"


def in_the_core(times: int) -> list[str]:
    """Rows by state: a cancel, to its publication; between two steps, or in one that is planned."""
    rows = []
    for case in CASES:
        with ledger_directory() as directory:
            cancels = Cancels(directory, case)
            seconds, held = map(np.array, zip(*cancels.seconds(times), strict=True))
            cancels.ledger.close()
        median, high = np.percentile(seconds * 1e6, (50, 99))
        rows.append(f"| {case.name} | {int(np.median(held))} | {times} | {median:.0f} µs | {high:.0f} µs |")
    return rows


class Watch:
    """A running engine's release times, read from its ledger."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def row(self, name: str, cause: str, run: Callable[[], Awaitable[None]]) -> str:
        """Run something; a row of what the ledger's histogram of this cause has more of afterwards."""
        before, total = self._release(cause)
        await run()
        await self._until_idle()
        after, sum_after = self._release(cause)
        counts = after - before
        ended = int(counts.sum())
        if not ended:
            raise BenchError(f"{name}: nobody was released by {cause}")
        mean = (sum_after - total) / ended
        return f"| {name} | {ended} | {mean * 1e3:.2f} ms | {self._bound(counts, 0.5)} | {self._bound(counts, 0.99)} |"

    def _release(self, cause: str) -> tuple[np.ndarray, float]:
        value = self._reader.sample().stats.histogram("release", cause=cause)
        if value is None:
            raise BenchError("the ledger keeps no release times")
        self._bounds = value.bounds
        return np.array(value.buckets, np.int64), float(value.sum)

    def _bound(self, counts: np.ndarray, share: float) -> str:
        """The upper bound of the bucket in which a share of the observations ends."""
        at = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
        return f"{self._bounds[at] * 1e3:g} ms" if at < len(self._bounds) else "more"

    async def _until_idle(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while (sample := self._reader.sample()).stats.gauge("active_blocks") or len(sample.slots):
            if time.monotonic() > deadline:
                raise BenchError("blocks are still held for clients that are gone")
            await asyncio.sleep(0.01)


def over_http(times: int) -> list[str]:
    """Rows by way, on an engine whose steps take 5 ms at least."""
    with ledger_directory() as directory:
        sizes = {"--blocks": 2048, "--max-num-seqs": 32, "--max-model-len": 1024, "--port": 0, "--step-time": STEP}
        flags = [str(part) for pair in sizes.items() for part in pair]
        engine = Child(
            "engine",
            ["engine", "--json", "--model", "cell", "--name", "cancel", "--directory", str(directory / "l"), *flags],
            log=directory / "engine.log",
        )
        try:
            ready = engine.first_line(READY_SECONDS)
            with closing(Reader.open(Path(ready["ledger"]))) as reader:
                return asyncio.run(_leave(Watch(reader), Leavers(str(ready["url"])), times))
        finally:
            engine.stop(STOP_SECONDS)


async def _leave(watch: Watch, leavers: Leavers, times: int) -> list[str]:
    async def each(one: Callable[[], Awaitable[None]]) -> None:
        for _ in range(times):
            await one()

    async def storms() -> None:
        for _ in range(max(1, times // 20)):
            await leavers.storm(100)

    return [
        await watch.row("disconnect", "disconnect", lambda: each(leavers.disconnect)),
        await watch.row("API", "api", lambda: each(leavers.abort)),
        await watch.row("timeout", "timeout", lambda: each(leavers.time_out)),
        await watch.row("reconnect storm, 100 clients twice", "disconnect", storms),
    ]


def tables(*, core_times: int, http_times: int) -> str:
    """Both tables as Markdown, with the machine they were measured on."""
    machine = this_machine()
    where = (
        f"Machine: {machine.cores} cores, {machine.cpu_model}, Linux {machine.kernel}, load average "
        f"{machine.load_1m:.1f} when the run began; Python {machine.python}, numpy {machine.numpy}."
    )
    core, http = in_the_core(core_times), over_http(http_times)
    return "\n".join([where, "", CORE_HEAD, *core, "", HTTP_HEAD, *http, ""])


def main() -> int:
    """Measure; print, or write the page. Returns 1 if something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.cancel", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cancels, for trying it out")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/cancellation.md")
    args = parser.parse_args()
    try:
        text = tables(core_times=10 if args.quick else 200, http_times=5 if args.quick else 100)
    except BenchError as error:
        print(f"bench.cancel: {error}", file=sys.stderr)
        return 1
    print(text)
    if args.write:
        PAGE.write_text(MARKED.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
