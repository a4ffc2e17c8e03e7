"""The tap: what an entry point of vLLM's scheduler has changed, as plain numbers, in one message per publication.

Reads vLLM's objects right after the call; derives nothing from its arguments, and holds no ledger.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import compress
from marshal import dumps
from typing import Any

from kvledger_vllm.causes import is_paused
from kvledger_vllm.channel import Sender
from kvledger_vllm.errors import InstrumentError
from kvledger_vllm.message import CLOSE, SCHEDULE, UPDATE, Message, quiet_update
from kvledger_vllm.notes import Notes
from kvledger_vllm.proof import Proof
from kvledger_vllm.rare import Rare
from kvledger_vllm.reading import codes_of
from kvledger_vllm.stretch import Stretch

_now = time.monotonic_ns
_MARSHAL_VERSION = 2  # by later ones each object is looked for among all that were packed before it
_MOST_IN_FLIGHT = 64


class Tap:
    """Messages about one scheduler. `notes` is what the hooks saw since the last one.

    `ended`, of CLOCK_MONOTONIC nanoseconds and `surely=` whether it has to look, says how the mirror ended, "" while it
    lives.
    """

    def __init__(self, scheduler: Any, notes: Notes, sender: Sender, ended: Callable[..., str]) -> None:
        manager = scheduler.kv_cache_manager
        managers = tuple(manager.coordinator.single_type_managers)
        self._scheduler, self._notes, self._sender, self._ended = scheduler, notes, sender, ended
        # Tables of full attention only grow. With others a request's tables are told as a whole.
        grow = len(managers) == 1 and type(managers[0]).__name__ == "FullAttentionManager"
        self._tables = managers[0].req_to_blocks if grow else None
        self.proof = Proof(scheduler, self._tables)
        self._queue = manager.block_pool.free_block_queue
        self.rare, self.stretch = Rare(scheduler, notes), Stretch(manager.block_pool.blocks)
        self._last: Any = None
        self._steps: deque[tuple[Any, int]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._step = self._tapped_ns = self._answered = 0
        self._withheld: tuple[int, ...] | None = None
        # Where a step may give a request more than one token, or take some back, each is asked how many it has.
        self._one_each = (
            not getattr(scheduler, "num_spec_tokens", 0)
            and getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1
            and getattr(scheduler, "connector", None) is None
        )
        self.sent_ns = 0
        """Ledger clock of the last publication."""

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
        """Say what an entry point has changed; with the next message where that can only be a token for each request.

        `output` is the scheduler output of a schedule or an update, `outputs` what an update hands out to clients,
        `computed` the model's output. Raises `InstrumentError` where the mirror has ended or does not keep up.
        """
        notes, scheduler = self._notes, self._scheduler
        evictions, step, grown, tokens, stretch, proof = notes.evictions, 0, None, None, None, None
        if self._sender.wanted != self._answered:
            self._answered, self._last = self._sender.wanted, None
            self.rare.want_all()
        quiet = notes.quiet()
        if kind == UPDATE:
            step, tokens = self._step_of(output), self._handed_out(output, outputs, computed)
        elif kind == SCHEDULE:
            scheduled = output.num_scheduled_tokens
            if scheduled != self._last:
                tokens = self._last = scheduled
            if scheduled:
                self._step = step = self._step + 1
                self._steps.append((output, step))
            grown = self._grown(output.scheduled_cached_reqs)
            quiet = quiet and not (
                output.scheduled_new_reqs
                or output.scheduled_cached_reqs.resumed_req_ids
                or scheduler.waiting
                or getattr(scheduler, "kv_holding_waiting", None)
                or notes.dirty
            )
        else:
            quiet = False
        fresh = notes.fresh
        if kind == UPDATE and quiet and step and tokens is None and not fresh and self._may_wait():
            self.sent_ns = now = _now()
            running, free = len(scheduler.running), self._queue.num_free_blocks
            self._withheld = began_ns, ended_ns, now, self._tapped_ns, running, free, step
            self._tapped_ns = _now() - ended_ns
            return
        blocks, codes = [block.block_id for block in fresh], codes_of(fresh)
        rare = None if quiet else self.rare.collect(kind, output, throttled)
        self.sent_ns = now = _now()
        # An engine that has nothing to do may say nothing more for hours. One that has scheduled something has.
        idle = not (kind == SCHEDULE and step) and not scheduler.has_requests()
        if why := self._ended(now, surely=idle):
            raise InstrumentError(f"the mirror ended {why}")
        if kind != UPDATE:
            stretch = self.stretch.due(now)
        if kind == SCHEDULE:
            proof = self.proof.due(now)
        self._send(
            (
                kind, began_ns, ended_ns, now, self._tapped_ns, idle, len(scheduler.running),
                self._queue.num_free_blocks, evictions, blocks, codes, grown, step, tokens, stretch, proof, rare,
                self._withheld,
            )
        )  # fmt: skip
        if fresh:
            fresh.clear()
        notes.evictions = 0
        self._tapped_ns = _now() - ended_ns

    def tell(self) -> None:
        """Say now what would be said with the next message. Raises `InstrumentError` as `publish` does."""
        if self._withheld is not None:
            self._send(tuple(quiet_update(self._withheld)))

    @property
    def sent(self) -> int:
        """Messages so far."""
        return self._sender.sent

    def close(self, clean: bool) -> None:
        """Say that there is nothing more to come, and whether the core ends as it was asked to.

        Raises `InstrumentError` where the mirror does not keep up.
        """
        now = _now()
        last = Message(CLOSE, now, now, now, 0, True, 0, 0, 0, [], [], None, 0, None, None, None, {"clean": clean})
        self._send(tuple(last._replace(update=self._withheld)))

    def _send(self, message: tuple[Any, ...]) -> None:
        packed, size = dumps(message, _MARSHAL_VERSION), self._sender.size
        if not self._sender.send(packed):
            if len(packed) > size // 2:
                raise InstrumentError(
                    f"a statement of {len(packed):,} bytes has no room in a ring of {size:,}: restart vLLM, which has "
                    "nothing but its pool to tell of then"
                )
            raise InstrumentError(f"the mirror did not keep up: {size:,} bytes are waiting for it")
        self._withheld = None

    def _may_wait(self) -> bool:
        """Whether a schedule is sure to follow, which tells of this: an engine that may stand still tells at once."""
        return self._withheld is None and bool(self._scheduler.running) and not is_paused(self._scheduler)

    def _grown(self, cached: Any) -> tuple[Any, ...] | None:
        tables, new = self._tables, cached.new_block_ids
        ids = list(compress(cached.req_ids, new))
        if not ids:
            return None
        if tables is None:
            self._notes.dirty.update(ids)
            return None
        # Looked up without making one: vLLM's dictionary would.
        return ids, [len(tables.get(i, ())) for i in ids], list(filter(None, new))

    def _step_of(self, output: Any) -> int:
        steps = self._steps
        while output.num_scheduled_tokens and steps:
            scheduled, step = steps.popleft()
            if scheduled is output:
                return step
        return 0

    def _handed_out(self, output: Any, outputs: Any, computed: Any) -> list[Any] | None:
        """None: one token to each request of the step. Else what each of them says of itself."""
        scheduled, sampled = output.num_scheduled_tokens, computed.sampled_token_ids
        if (
            self._one_each
            and not self._notes.ended_inside
            and sum([len(of_client.outputs) for of_client in outputs.values()]) == len(scheduled) == len(sampled)
            and bytes(map(len, sampled)).count(1) == len(scheduled)
        ):
            return None
        requests, told = self._scheduler.requests, list[Any]()
        for request_id in scheduled:
            if (request := requests.get(request_id)) is not None:
                told += (request_id, request.num_computed_tokens, request.num_output_tokens)
        return told
