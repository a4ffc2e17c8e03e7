"""The hooks on what happens to requests: who came, was preempted, ended, gave everything back. They only note."""

from __future__ import annotations

import time
from typing import Any

from kvledger_vllm.notes import Notes
from kvledger_vllm.wrapping import Function, Wrappers

_now = time.monotonic_ns


class RequestHooks:
    """Wrappers of a scheduler's methods. `asked_ns`: when an entry that may end requests was called, 0 outside."""

    def __init__(self, scheduler: Any, notes: Notes, wrappers: Wrappers) -> None:
        self._scheduler, self._notes, self._wrappers = scheduler, notes, wrappers
        self.asked_ns = 0

    def put_in(self) -> None:
        """Wrap everything that begins, stops or ends a request."""
        wrap, scheduler = self._wrappers.wrap, self._scheduler
        wrap(scheduler, "add_request", self._adding)
        wrap(scheduler, "finish_requests", self._finishing)
        wrap(scheduler, "_preempt_request", self._preempting)
        wrap(scheduler, "_free_request", self._freeing)
        wrap(scheduler, "_free_blocks", self._freed)
        wrap(scheduler, "_free_cow_retained_blocks", self._retaining)

    def _adding(self, original: Function) -> Function:
        arrived, requests = self._notes.arrived, self._scheduler.requests

        def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            known = request.request_id in requests
            if not known:
                arrived.append(request)
            return original(request, *args, **kwargs)

        return add_request

    def _finishing(self, original: Function) -> Function:
        def finish_requests(request_ids: Any, *args: Any, **kwargs: Any) -> Any:
            self._notes.cancelled_by_engine = request_ids is None
            return original(request_ids, *args, **kwargs)

        return finish_requests

    def _preempting(self, original: Function) -> Function:
        notes = self._notes

        def preempt_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            computed = request.num_computed_tokens
            result = original(request, *args, **kwargs)
            notes.preempted.append((request, computed))
            notes.dirty.add(request.request_id)
            return result

        return preempt_request

    def _freeing(self, original: Function) -> Function:
        ending = self._notes.ending

        def free_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            ending.append((request, self.asked_ns or _now()))
            return original(request, *args, **kwargs)

        return free_request

    def _freed(self, original: Function) -> Function:
        notes = self._notes

        def free_blocks(request: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(request, *args, **kwargs)
            notes.freed[request.request_id] = _now()
            notes.dirty.add(request.request_id)
            return result

        return free_blocks

    def _retaining(self, original: Function) -> Function:
        copied, deferred = self._notes.copied, getattr(self._scheduler, "deferred_frees", None)

        def free_cow_retained_blocks(*args: Any, **kwargs: Any) -> Any:
            before = len(deferred) if deferred is not None else 0
            result = original(*args, **kwargs)
            if deferred is not None and len(deferred) > before:
                copied.append(deferred[-1])
            return result

        return free_cow_retained_blocks
