"""Cancellation over HTTP: by disconnect, API, timeout and a storm, with release times taken from the ledger.

tests/engine/test_cancellation.py has every state and every point of a step; here it is the whole way, from a closed
connection to the block that is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bench.cancelclients import Leavers
from kvledger.words import RequestState
from tests.engine.server.process import EngineProcess, engine, eventually

STEP_SECONDS = 0.01
FLAGS = ("--blocks", "256", "--max-num-seqs", "8", "--max-model-len", "1024", "--step-time", "base=10ms")
PATIENCE_SECONDS = 2.0
"""A release takes what is left of a step; this is for a machine that does something else meanwhile."""


def released(process: EngineProcess, cause: str) -> tuple[int, float]:
    """Sequences whose blocks came back for this cause, and the seconds that took them all, as the ledger has it."""
    value = process.sample().stats.histogram("release", cause=cause)
    assert value is not None
    return int(value.buckets.sum()), value.sum


def leave(process: EngineProcess, way: Callable[[Leavers], Awaitable[None]]) -> None:
    """Have clients come and be gone."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await way(Leavers(process.url))

    asyncio.run(run())


async def times(count: int, one: Callable[[], Awaitable[None]]) -> None:
    """The same client several times."""
    for _ in range(count):
        await one()


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        (lambda leavers: times(5, leavers.disconnect), "disconnect"),
        (lambda leavers: times(5, leavers.abort), "api"),
        (lambda leavers: times(5, leavers.time_out), "timeout"),
    ],
    ids=["disconnect", "api", "timeout"],
)
def test_every_block_is_back_within_a_step_and_the_ledger_says_how_long_it_took(
    directory: Path, way: Callable[[Leavers], Awaitable[None]], cause: str
) -> None:
    with engine(directory, *FLAGS) as process:
        leave(process, way)
        process.assert_nothing_lost()
        count, seconds = released(process, cause)
        assert count == 5
        assert 0 < seconds <= count * (STEP_SECONDS + PATIENCE_SECONDS)
        assert process.stop() == (0, "")


def test_a_reconnect_storm_is_released_and_leaves_an_engine_that_serves(directory: Path) -> None:
    with engine(directory, *FLAGS) as process:
        leave(process, lambda leavers: leavers.storm(60))
        leave(process, lambda leavers: leavers.abort())  # whoever came before it has been accepted
        process.assert_nothing_lost()
        assert released(process, "api")[0] == 1
        count, seconds = released(process, "disconnect")
        assert 12 <= count <= 120, "every fifth client had its first token"
        assert count == process.counter("cancellations_total", cause="disconnect")
        assert seconds <= count * PATIENCE_SECONDS * 5


def test_a_client_whose_request_is_swapped_out_leaves_and_nothing_stays_behind(directory: Path) -> None:
    swap = ("--blocks", "72", "--preemption", "swap", "--swap-blocks", "128", "--no-prefix-caching")
    small = ("--max-num-seqs", "4", "--max-model-len", "1024", "--step-time", "base=1ms")
    with engine(directory, *swap, *small) as process:

        def someone_is_swapped() -> bool:
            return bool((process.sample().slots.state == RequestState.SWAPPED).any())

        async def leave_once_swapped(leavers: Leavers) -> None:
            streams = [await leavers.begin(max_tokens=900) for _ in range(3)]
            async with asyncio.timeout(30):
                while not someone_is_swapped():
                    await asyncio.sleep(0.005)
            for _, writer in streams:
                writer.close()

        leave(process, leave_once_swapped)
        eventually(process.holds_nothing, "nothing is held for clients that left")
        process.assert_nothing_lost()
        assert process.counter("preemptions_total", mode="swap") > 0
        assert process.counter("preemptions_total", mode="recompute") == 0
        assert released(process, "disconnect")[0] == 3
        assert process.stop() == (0, "")
