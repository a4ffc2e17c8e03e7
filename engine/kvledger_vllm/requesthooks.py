"""The hooks on what happens to requests: who came, was preempted, ended, gave everything back. They only note."""

from __future__ import annotations

import time
from typing import Any

from kvledger_vllm.notes import Notes
from kvledger_vllm.switch import Switch
from kvledger_vllm.wrapping import Function, Wrappers

_now = time.monotonic_ns


class RequestHooks:
    """Wrappers of a scheduler's methods. `asked_ns`: when an entry that may end requests was called, 0 outside."""

    def __init__(self, scheduler: Any, notes: Notes, wrappers: Wrappers, switch: Switch) -> None:
        self._scheduler, self._notes, self._wrappers, self._switch = scheduler, notes, wrappers, switch
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
        note = self._switch.guard(self._arriving)

        def add_request(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        return add_request

    def _arriving(self, request: Any, *_: Any) -> None:
        if request.request_id not in self._scheduler.requests:
            self._notes.arrived.append(request)

    def _finishing(self, original: Function) -> Function:
        note = self._switch.guard(self._told_to_end)

        def finish_requests(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        return finish_requests

    def _told_to_end(self, request_ids: Any, *_: Any, **__: Any) -> None:
        self._notes.cancelled_by_engine = request_ids is None
        self._notes.ended_inside = True

    def _preempting(self, original: Function) -> Function:
        note = self._switch.guard(self._preempted)

        def preempt_request(*args: Any, **kwargs: Any) -> Any:
            request = args[0] if args else kwargs.get("request")
            computed = getattr(request, "num_computed_tokens", 0)
            result = original(*args, **kwargs)
            note(request, computed)
            return result

        return preempt_request

    def _preempted(self, request: Any, computed: int) -> None:
        self._notes.preempted.append((request, computed))
        self._notes.dirty.add(request.request_id)

    def _freeing(self, original: Function) -> Function:
        ending = self._notes.ending
        note = self._switch.guard(lambda request, *_, **__: ending.append((request, self.asked_ns or _now())))

        def free_request(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        return free_request

    def _freed(self, original: Function) -> Function:
        note = self._switch.guard(self._gave_back)

        def free_blocks(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(*args, **kwargs)
            return result

        return free_blocks

    def _gave_back(self, request: Any, *_: Any) -> None:
        self._notes.freed[request.request_id] = _now()
        self._notes.dirty.add(request.request_id)

    def _retaining(self, original: Function) -> Function:
        copied, deferred = self._notes.copied, getattr(self._scheduler, "deferred_frees", ())
        note = self._switch.guard(lambda before: copied.extend(list(deferred)[before:][-1:]))

        def free_cow_retained_blocks(*args: Any, **kwargs: Any) -> Any:
            before = len(deferred)
            result = original(*args, **kwargs)
            note(before)
            return result

        return free_cow_retained_blocks
