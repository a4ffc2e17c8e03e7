"""The tap: what an entry point of vLLM's scheduler has changed, as plain numbers, in one message per publication.

Reads vLLM's objects right after the call, and derives nothing from its arguments; holds no ledger. What a message
says, and in which order, is `kvledger_vllm.message`.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import compress
from marshal import dumps
from typing import Any

from kvledger_vllm.channel import Sender
from kvledger_vllm.errors import InstrumentError
from kvledger_vllm.message import SCHEDULE, UPDATE
from kvledger_vllm.notes import Notes
from kvledger_vllm.rare import Rare
from kvledger_vllm.reading import code_of
from kvledger_vllm.stretch import Stretch

_now = time.monotonic_ns
_MARSHAL_VERSION = 2  # of later ones each object is looked up in a table of those that were written already
_MOST_IN_FLIGHT = 64
_PROVED = 4


class Tap:
    """Messages about one scheduler. `notes` is what the hooks saw since the last one."""

    def __init__(self, scheduler: Any, notes: Notes, sender: Sender) -> None:
        manager = scheduler.kv_cache_manager
        managers = tuple(manager.coordinator.single_type_managers)
        self._scheduler, self._notes, self._sender = scheduler, notes, sender
        self._tables = managers[0].req_to_blocks if len(managers) == 1 else None
        self._queue = manager.block_pool.free_block_queue
        self._rare = Rare(scheduler, notes)
        self._stretch = Stretch(manager.block_pool.blocks)
        self._last: Any = None
        self._steps: deque[tuple[Any, int]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._step = self._took_ns = self._answered = self._next_proof = 0
        # Where a step may give a request more than one token, or take some back, each is asked how many it has.
        self._one_each = (
            not getattr(scheduler, "num_spec_tokens", 0)
            and getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1
            and getattr(scheduler, "connector", None) is None
        )
        self.sent_ns = 0
        """Time of the last publication: the ledger clock."""

    def publish(
        self,
        kind: int,
        began_ns: int,
        ended_ns: int,
        output: Any = None,
        throttled: bool = False,
        outputs: Any = None,
        computed: Any = None,
    ) -> None:
        """Say what an entry point has changed.

        `output` is the scheduler output of a schedule or an update, `outputs` what an update hands out to clients,
        `computed` the model's output. Raises `InstrumentError` where the mirror does not keep up.
        """
        notes, scheduler = self._notes, self._scheduler
        step, grown, tokens, fresh = 0, None, None, notes.fresh
        if self._sender.wanted != self._answered:
            self._tell_all()
        quiet = notes.quiet()
        if kind == SCHEDULE:
            scheduled = output.num_scheduled_tokens
            if scheduled != self._last:
                tokens = self._last = scheduled
            if scheduled:
                self._step = step = self._step + 1
                self._steps.append((output, step))
            grown = self._grown(output.scheduled_cached_reqs)
            quiet = quiet and not output.scheduled_new_reqs and not scheduler.waiting
        elif kind == UPDATE:
            step = self._step_of(output)
            tokens = self._handed_out(output, outputs, computed)
        rows: list[int] = []
        for block in fresh:
            rows += (block.block_id - 1, code_of(block))
        now = _now()
        self.sent_ns = now
        message = dumps(
            (
                kind, began_ns, ended_ns, now, self._took_ns, not scheduler.has_requests(), len(scheduler.running),
                self._queue.num_free_blocks, notes.evictions, rows, grown, step, tokens,
                self._stretch.due(now) if kind != UPDATE else None,
                self._proof() if kind == SCHEDULE else None,
                None if quiet else self._rare.collect(kind, output, throttled),
            ),
            _MARSHAL_VERSION,
        )  # fmt: skip
        if fresh:
            fresh.clear()
        notes.evictions = 0
        if not self._sender.send(message):
            raise InstrumentError("the mirror did not keep up")
        self._took_ns = _now() - ended_ns

    def _grown(self, cached: Any) -> list[Any] | None:
        """Of tables that grew: request, blocks now, and the new ones. With several groups all are told as a whole."""
        tables, dirty = self._tables, self._notes.dirty
        ids = list(compress(cached.req_ids, cached.new_block_ids))
        if not ids:
            return None
        if tables is None:
            dirty.update(ids)
            return None
        grown: list[Any] = []
        for request_id in ids:
            table = tables[request_id]
            grown += (request_id, len(table), table[-1].block_id - 1)
        return grown

    def _step_of(self, output: Any) -> int:
        while self._steps:
            scheduled, step = self._steps.popleft()
            if scheduled is output:
                return step
        return 0

    def _handed_out(self, output: Any, outputs: Any, computed: Any) -> Any:
        """None: one token to each request of the step. Else what each of them says of itself."""
        scheduled = output.num_scheduled_tokens
        sampled = computed.sampled_token_ids
        if (
            self._one_each
            and not self._notes.ended_inside
            and sum([len(of_client.outputs) for of_client in outputs.values()]) == len(scheduled) == len(sampled)
            and bytes(map(len, sampled)).count(1) == len(scheduled)
        ):
            return None
        requests, told = self._scheduler.requests, []
        for request_id in scheduled:
            if (request := requests.get(request_id)) is not None:
                told += (request_id, request.num_computed_tokens, request.num_output_tokens)
        return told

    def _proof(self) -> list[Any]:
        """A few running requests in turn, as they say of themselves: whatever was added up is compared with them."""
        running, at = self._scheduler.running, self._next_proof
        if at >= len(running):
            at = 0
        self._next_proof = at + _PROVED
        proof: list[Any] = []
        for request in running[at : at + _PROVED]:
            proof += (request.request_id, request.num_computed_tokens, request.num_output_tokens)
        return proof

    def _tell_all(self) -> None:
        self._answered = self._sender.wanted
        self._rare.note_all()
        self._last = None
