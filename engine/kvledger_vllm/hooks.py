"""The hooks in one scheduler: wrappers put on the objects themselves, which only note, and publish at the outermost.

Nothing of vLLM's classes is changed, and taking a hook out is deleting an attribute. A wrapper first does what it
wraps, with its arguments and its result, and lets its errors pass.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from kvledger_vllm.blockhooks import BlockHooks
from kvledger_vllm.message import OTHER, SCHEDULE, UPDATE
from kvledger_vllm.notes import Notes
from kvledger_vllm.requesthooks import RequestHooks
from kvledger_vllm.switch import Switch
from kvledger_vllm.tap import Tap
from kvledger_vllm.wrapping import Function, Wrappers

_now = time.monotonic_ns


Close = Callable[[bool], None]
"""Leaves the ledger behind; the argument is whether the engine core ends as it was asked to."""


class Hooks:
    """All wrappers of one scheduler."""

    def __init__(self, scheduler: Any, notes: Notes, tap: Tap, switch: Switch, close: Close) -> None:
        self._scheduler, self._notes, self._tap = scheduler, notes, tap
        self._switch, self._close = switch, close
        self._wrappers = Wrappers()
        self._requests = RequestHooks(scheduler, notes, self._wrappers, switch)
        self._blocks = BlockHooks(scheduler, notes, self._wrappers, switch)
        self._inside = False

    def put_in(self) -> None:
        """Wrap everything that changes blocks, tables or requests; then publish the scheduler as it is, all of it."""
        self._tap.rare.want_all()
        self._requests.put_in()
        self._blocks.put_in()
        # Last, so that an entry point's publication comes after everything that was noted in it.
        self._wrap_entries()
        self._tap.publish(OTHER, _now(), _now())

    def remove(self) -> None:
        """Take every wrapper out: the objects are what they were."""
        self._wrappers.remove()
        self._notes.clear()

    # -- entry points: a publication each -------------------------------------------------------------------------

    def _wrap_entries(self) -> None:
        wrap, scheduler = self._wrappers.wrap, self._scheduler
        wrap(scheduler, "schedule", self._schedule)
        wrap(scheduler, "update_from_output", self._update)
        for name in ("add_request", "finish_requests", "reset_prefix_cache", "set_pause_state"):
            wrap(scheduler, name, self._entry)
        wrap(scheduler, "shutdown", self._shutdown)

    def _entry(self, original: Function) -> Function:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            began = self._requests.asked_ns = self._enter()
            try:
                return original(*args, **kwargs)
            finally:
                self._requests.asked_ns = 0
                self._leave(OTHER, began)

        return entry

    def _schedule(self, original: Function) -> Function:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            began = self._enter()
            try:
                output = original(*args, **kwargs)
            except BaseException:
                self._inside = False
                raise
            throttled = bool(args[0] if args else kwargs.get("throttle_prefills", False))
            self._leave(SCHEDULE, began, output, throttled)
            return output

        return schedule

    def _update(self, original: Function) -> Function:
        def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(scheduler_output, *args, **kwargs)
            began = self._enter()
            try:
                outputs = original(scheduler_output, *args, **kwargs)
            except BaseException:
                self._inside = False
                raise
            computed = args[0] if args else kwargs.get("model_runner_output")
            self._leave(UPDATE, began, scheduler_output, False, outputs, computed)
            return outputs

        return update_from_output

    def _enter(self) -> int:
        self._inside = True
        return _now()

    def _leave(
        self,
        kind: int,
        began: int,
        output: Any = None,
        throttled: bool = False,
        outputs: Any = None,
        computed: Any = None,
    ) -> None:
        self._inside = False
        if not self._switch.on:
            return
        try:
            self._tap.publish(kind, began, _now(), output, throttled, outputs, computed)
        except Exception as error:  # noqa: BLE001 - the switch is where it ends
            self._switch.fail(error)

    def _shutdown(self, original: Function) -> Function:
        def shutdown(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            return original(*args, **kwargs)

        return shutdown

    def stop(self) -> None:
        """The engine core goes down: leave the ledger behind. vLLM comes here on the way out of an error, too."""
        error = sys.exc_info()[1]
        clean = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))

        def leave() -> None:
            self.remove()
            self._close(clean)

        self._switch.run(leave)
