"""Hit rates of the eviction policies on a trace: the engine's own cache, fed with the prefix blocks of real requests.

`python -m bench.eviction TRACE` with a trace of Mooncake's form: JSON lines with `hash_ids`, an id for each block of a
prompt, equal ids being equal content after equal prefixes. A block of the trace is a block of the cache here, with one
token that is the id. Requests come in the trace's order; as many as `--running` run at once.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from itertools import islice
from pathlib import Path

import numpy as np

from kvledger.clock import VirtualClock
from kvledger.limits import Group, Limits
from kvledger.views import I32
from kvledger.words import ReleaseCause, RequestState
from kvledger.writer import Ledger
from kvledger_engine.evict import Eviction
from kvledger_engine.kvcache import KvCache

SALT = 1


def read_prompts(trace: Path, most: int | None = None) -> list[I32]:
    """The block ids of each request's prompt, in order."""
    with trace.open() as lines:
        return [np.array(json.loads(line)["hash_ids"], np.int32) for line in islice(lines, most)]


class Replay:
    """A cache of so many blocks, and the requests that run. A request that finds no room makes the oldest end."""

    def __init__(self, eviction: Eviction, *, capacity_blocks: int, running: int, longest: int) -> None:
        limits = Limits(
            engine="eviction",
            capacity_blocks=capacity_blocks,
            max_requests=running + 1,
            groups=(Group(block_size_tokens=1),),
            max_logical_blocks=(running + 1) * (longest + 1),
            event_records=2,
            summary_records=2,
        )
        self._ledger = Ledger.in_memory(limits, clock=VirtualClock())
        self._cache = KvCache(self._ledger, eviction=eviction)
        self._tokens = np.zeros((running + 1, longest + 1), np.int32)
        self._salts = np.full(running + 1, SALT, np.uint64)
        self._running: deque[int] = deque()
        self._free = list(range(running + 1))
        self._most = running
        self.asked = self.hit = 0

    def request(self, prompt: I32) -> None:
        """One more request: its prompt, and a token more, which is nobody else's."""
        while len(self._running) >= self._most:
            self._end_oldest()
        slot = self._free.pop()
        self._tokens[slot, : len(prompt)], self._tokens[slot, len(prompt)] = prompt, -1
        tokens = self._tokens[slot, : len(prompt) + 1]
        self._ledger.begin()
        self._ledger.slots.serial[slot], self._ledger.slots.state[slot] = 1 + slot, RequestState.RUNNING
        while (hit := self._admit(slot, tokens)) is None:
            self._end_oldest()
        self._cache.commit(np.array([slot]), np.array([len(tokens)]), self._tokens, self._salts)
        self._ledger.end()
        self._running.append(slot)
        self.asked += len(prompt)
        self.hit += hit

    def _admit(self, slot: int, tokens: I32) -> int | None:
        found = self._cache.match(slot, tokens, SALT)
        return self._cache.admit(slot, tokens, SALT, len(tokens) - found)

    def _end_oldest(self) -> None:
        slot = self._running.popleft()
        self._cache.release(slot, cause=ReleaseCause.FINISH)
        self._ledger.slots.serial[slot] = 0
        self._free.append(slot)


def hit_rate(prompts: list[I32], eviction: Eviction, *, capacity_blocks: int, running: int) -> float:
    """The share of prompt blocks that were found cached."""
    longest = max(map(len, prompts))
    replay = Replay(eviction, capacity_blocks=capacity_blocks, running=running, longest=longest)
    for prompt in prompts:
        replay.request(prompt)
    return replay.hit / replay.asked


def main() -> None:
    """Print a table: a row for each capacity, a column for each policy."""
    parser = argparse.ArgumentParser(prog="python -m bench.eviction", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--capacities", type=int, nargs="+", default=[2_000, 5_000, 10_000, 20_000, 50_000])
    parser.add_argument("--running", type=int, default=16, help="requests at once (default: %(default)s)")
    parser.add_argument("--requests", type=int, help="so many of the trace (default: all)")
    args = parser.parse_args()
    prompts = read_prompts(args.trace, args.requests)
    distinct = len(np.unique(np.concatenate(prompts)))
    asked = sum(map(len, prompts))
    print(
        f"{len(prompts):,} requests, {asked:,} prompt blocks, {distinct:,} distinct: at most {1 - distinct / asked:.1%}"
    )
    print("| blocks | " + " | ".join(policy.value for policy in Eviction) + " |")
    print("|---|" + "---|" * len(Eviction))
    for capacity in args.capacities:
        rates = [hit_rate(prompts, policy, capacity_blocks=capacity, running=args.running) for policy in Eviction]
        print(f"| {capacity:,} | " + " | ".join(f"{rate:.2%}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
