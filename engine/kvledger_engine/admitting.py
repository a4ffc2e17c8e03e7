"""Admission: who leaves the queue for the running set, and what all others wait for. One queue, in order of arrival.

Takes blocks for prompts; knows no budgets, which are `sharing`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.views import I32
from kvledger.words import Event, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_engine.batch import Rows
from kvledger_engine.config import EngineConfig
from kvledger_engine.deadlines import Deadlines
from kvledger_engine.kvcache import KvCache
from kvledger_engine.request import RequestTable
from kvledger_engine.room import Room
from kvledger_engine.running import RunningSet
from kvledger_engine.waits import WaitQueue

Row = tuple[int, int, int, int]
"""(slot, start, count, length) of an admitted prompt, as `Rows.plus` takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an engine that admission works with."""

    running: RunningSet
    requests: RequestTable
    cache: KvCache
    queue: WaitQueue
    room: Room
    deadlines: Deadlines


class Admission:
    """Admits from the head of the queue until one has to wait: its cause is everybody's."""

    def __init__(self, config: EngineConfig, ledger: Ledger, parts: Parts) -> None:
        self._config, self._ledger, self._slots = config, ledger, ledger.slots
        self._running, self._requests, self._cache = parts.running, parts.requests, parts.cache
        self._queue, self._room, self._deadlines = parts.queue, parts.room, parts.deadlines
        self._turned_away: tuple[int, int] | None = None
        self._values = ledger.stats.values
        self._last_token_gauge = ledger.stats.gauge("last_token_ns")

    def admit(self, rows: Rows, *, shut: bool) -> Rows:
        """The rows of the step with those of prompts that were admitted; `shut` after a preemption in this step."""
        if shut:
            self._queue.blocked_by(WaitCause.PREEMPTION)
            return rows
        if self._queue.head() is None:
            self._queue.blocked_by(WaitCause.STEP)
            return rows
        admitted: list[Row] = []
        budget = self._config.max_num_batched_tokens - rows.total_tokens
        cause: WaitCause | None = None
        promised = self._promised()
        while cause is None and (group := self._queue.head()) is not None:
            row, cause = self._admit_group(group, budget=budget, promised=promised)
            if row is not None:
                # Only the last row of a step can be a part of a prompt, so nothing more is promised until then.
                admitted.append(row)
                budget -= row[2]
        self._queue.blocked_by(WaitCause.STEP if cause is None else cause)
        return self._with(rows, admitted)

    def _with(self, rows: Rows, admitted: list[Row]) -> Rows:
        rows = rows.plus(admitted)
        if admitted and len(rows.slots) == len(self._running):
            # The same slots in the same order: the array itself tells whoever sees it again that nothing has changed.
            rows = replace(rows, slots=self._running.slots)
        return rows

    def _promised(self) -> int:
        """Blocks that running prefills still need for prompts they were admitted with."""
        partial, lengths = self._running.partial()
        return int(self._cache.blocks_needed(partial, lengths).sum()) if len(partial) else 0

    def _admit_group(self, group: I32, *, budget: int, promised: int) -> tuple[Row | None, WaitCause | None]:
        """Admit a group if it may be: the row its leader gets, or the cause it waits for. Neither if it ended."""
        if len(self._running) + len(group) > self._config.max_num_seqs:
            return None, WaitCause.BATCH_SLOTS
        if budget <= 0:
            return None, WaitCause.TOKEN_BUDGET
        leader, alone = int(group[0]), not len(self._running)
        tokens, salt = self._requests.sequence(leader), int(self._requests.salts[leader])
        key = (int(self._slots.serial[leader]), self._cache.pool.available_blocks - promised)
        if not alone and self._turned_away == key:
            return None, WaitCause.POOL
        hit, blocks = self._found(leader, tokens, salt)
        if not self._config.chunked_prefill and len(tokens) - hit > budget:
            return None, WaitCause.TOKEN_BUDGET
        count = min(budget, len(tokens) - hit)
        spare = promised + self._config.admission_watermark_blocks
        needed = blocks + spare
        if (alone or needed <= self._cache.pool.available_blocks) and self._take(group, tokens, salt, hit, count):
            return (leader, hit, count, len(tokens)), None
        if alone:
            self._end_hopeless(leader)
            return None, None
        self._turned_away = key
        return None, WaitCause.POOL

    def _found(self, leader: int, tokens: I32, salt: int) -> tuple[int, int]:
        """Tokens of a waiting sequence that need not be computed, and the blocks it takes to hold all of them."""
        if self._slots.state[leader] == RequestState.SWAPPED:
            return self._cache.swaps.tokens_of(leader), self._cache.swaps.blocks_needed(leader, len(tokens))
        hit = self._cache.match(leader, tokens, salt)
        return hit, self._cache.blocks_beyond(hit, len(tokens))

    def _take(self, group: I32, tokens: I32, salt: int, hit: int, count: int) -> bool:
        """Take the blocks of a prompt's first part and move the group into the running set, if there are so many."""
        leader = int(group[0])
        if self._slots.state[leader] == RequestState.SWAPPED:
            if not self._cache.swaps.restore(leader, hit + count):
                return False
        else:
            taken = self._cache.admit(leader, tokens, salt, count)
            if taken is None:
                return False
            assert taken == hit, f"{hit} tokens matched, {taken} taken over"
        self._start(group, hit)
        return True

    def _end_hopeless(self, leader: int) -> None:
        """Nobody is left to give blocks back: blocks have been lost, and waiting would be for ever."""
        self._queue.leave(leader)
        self._room.give_up(leader)

    def _start(self, group: I32, hit: int) -> None:
        """Move a group whose leader holds its blocks from the queue into the running set."""
        slots, leader = self._slots, int(group[0])
        self._queue.leave(leader)
        self._requests.move(group, RequestState.RUNNING)
        if int(slots.preemptions[leader]) == 0:
            slots.hit_tokens[leader] = hit
            self._deadlines.started(group)
        self._running.add(group)
        self._values[self._last_token_gauge] = self._ledger.now_ns
        for slot in group.tolist():
            self._ledger.event(Event.ADMITTED, slots.serial.item(slot), blocks=self._cache.held_blocks(slot))
