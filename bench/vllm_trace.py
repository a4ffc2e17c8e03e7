"""The Mooncake trace through our cache and vLLM's in turns: `python -m bench.vllm_trace` in vLLM's environment."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Any

import numpy as np

from bench.answers import Answer, answering
from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows
from bench.mooncake import prompts, read
from bench.replay import Replay
from bench.tmpfs import ledger_directory
from bench.traces import MOONCAKE, trace
from bench.vllm_manager import Manager, settle, versions
from bench.vllmtrace import CAPACITY_BLOCKS, PART, PER_WINDOW, QUICK_PART, RUNNING
from kvledger.views import I32

_Served = list[tuple[int, int]]


class Peer:
    """vLLM's manager, fed as ours is."""

    def __init__(self, *, longest: int) -> None:
        self.manager = Manager(CAPACITY_BLOCKS, max_model_len_tokens=longest)
        self._running: deque[Any] = deque()
        self._served = 0

    def requests(self, asked: list[list[int]]) -> list[Any]:
        """New requests with their hashes."""
        first, self._served = self._served, self._served + len(asked)
        return [self.manager.request(f"request-{first + i}", prompt) for i, prompt in enumerate(asked)]

    def serve(self, request: Any) -> tuple[int, int]:
        """One more request: its hit tokens, and the blocks it has. Raises `BenchError` if it does not fit."""
        if len(self._running) == RUNNING:
            self.manager.manager.free(self._running.popleft())
        hit = self.manager.admit(request)
        if hit is None:
            raise BenchError(f"a prompt of {request.num_tokens} tokens did not fit: give the pool more blocks")
        self._running.append(request)
        return hit, self.manager.held(request)

    def free(self) -> int:
        """End all that run; returns how many blocks can be taken then."""
        while self._running:
            self.manager.manager.free(self._running.popleft())
        return self.manager.available


class Race:
    """Both caches and what they took: nanoseconds of each window, by side; and what they found."""

    def __init__(self, ours: Replay, theirs: Peer) -> None:
        self._ours, self._theirs = ours, theirs
        self.spent_ns: dict[str, list[int]] = {"ours": [], "vllm": [], "vllm requests": []}
        self.hit_tokens = self.asked_tokens = self.blocks = 0

    def window(self, asked: list[I32], *, ours_first: bool) -> None:
        """The same requests through both. Raises `BenchError` unless all find and hold as much."""
        lists: list[list[int]] = [prompt.tolist() for prompt in asked]
        began_ns = time.thread_time_ns()
        requests = self._theirs.requests(lists)
        self.spent_ns["vllm requests"].append(time.thread_time_ns() - began_ns)
        sides = {"ours": (self._ours.serve, asked), "vllm": (self._theirs.serve, requests)}
        found = {side: self._timed(side, *sides[side]) for side in (sides if ours_first else reversed(sides))}
        ours = found["ours"]
        for mine, peers in zip(ours, found["vllm"], strict=True):
            if mine != peers:
                raise BenchError(f"(hit tokens, blocks) of a request: ours {mine}, vLLM {peers}: not the same work")
        self.hit_tokens += sum(hit for hit, _ in ours)
        self.blocks += sum(blocks for _, blocks in ours)
        self.asked_tokens += sum(map(len, asked))

    def _timed(self, side: str, serve: Any, asked: list[Any]) -> _Served:
        began_ns = time.thread_time_ns()
        served: _Served = [serve(request) for request in asked]
        self.spent_ns[side].append(time.thread_time_ns() - began_ns)
        return served

    def figures(self) -> dict[str, Windows]:
        """Milliseconds of each window."""
        return {side: np.array(spent) / 1e6 for side, spent in self.spent_ns.items()}


def measure(effort: Effort) -> Answer:
    """Milliseconds of every window of requests: `ours`, `vllm`, and `vllm requests`, which makes and hashes them."""
    rows = read(trace(MOONCAKE), None if effort.whole else effort.choose(full=PART, quick=QUICK_PART))
    windows, longest = len(rows) // PER_WINDOW, max(row.prompt_tokens for row in rows)
    with ledger_directory() as directory:
        ours = Replay(directory, capacity_blocks=CAPACITY_BLOCKS, running=RUNNING, longest_tokens=longest)
        race, asked = Race(ours, Peer(longest=longest)), prompts(rows)
        settle()
        for turn in effort.rounds(full=windows, quick=windows):
            race.window(list(islice(asked, PER_WINDOW)), ours_first=turn % 2 == 0)
        if {ours.free(), race._theirs.free()} != {CAPACITY_BLOCKS}:
            raise BenchError("not all blocks came back: work was left out")
        evicted = int(ours.ledger.stats.values[ours.ledger.stats.counter("evictions_total")])
        ours.close()
    total = {side: sum(spent) / 1e9 for side, spent in race.spent_ns.items()}
    return Answer(
        race.figures(),
        (
            versions(),
            f"{windows * PER_WINDOW:,} requests of {MOONCAKE}, {race.asked_tokens:,} prompt tokens, of which "
            f"{race.hit_tokens / race.asked_tokens:.1%} were found cached on both sides; {race.blocks:,} blocks held, "
            f"{evicted:,} evicted",
            f"in all ours {total['ours']:.2f} s, vLLM {total['vllm']:.2f} s ({total['vllm'] / total['ours']:.2f} ×) "
            f"and {total['vllm requests']:.2f} s to make and hash its requests",
        ),
    )


if __name__ == "__main__":
    answering(measure)
