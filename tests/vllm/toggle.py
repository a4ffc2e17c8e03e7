"""A vLLM plugin for benches and tests: takes the instrument out of a running engine core, and puts a new one in.

Active only if KVLEDGER_TEST_HOOK names a directory with the socket of a `tests.vllm.conductor`. It acts while the
engine is idle, in the engine core's own thread, and has nothing in the scheduler while that works.
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.vllm.debug_hook import PATIENCE_SECONDS, Attach, replace_attach

PutIn = Callable[[Any], Any]
"""Attaches a new instrument to a scheduler, and returns it."""


def register() -> None:
    """The entry point: from now on an engine core with a ledger obeys a conductor. Idempotent."""

    def toggled(original: Attach, socket_path: Path) -> Attach:
        def attach(scheduler: Any, settings: Any) -> Any:
            _listen_from_the_first_step(socket_path, lambda again: original(again, settings))
            return original(scheduler, settings)

        return attach

    replace_attach(toggled)


def _listen_from_the_first_step(path: Path, put_in: PutIn) -> None:
    """Schedulers are made while the engine core is; the loop is entered once, when all of it is there."""
    proc = sys.modules["vllm.v1.engine.core"].EngineCoreProc
    run_busy_loop = proc.run_busy_loop

    def listening_run_busy_loop(core: Any) -> Any:
        Toggle(path, core, put_in).start()
        return run_busy_loop(core)

    proc.run_busy_loop = listening_run_busy_loop


class Toggle(threading.Thread):
    """Waits on the conductor's socket; each line is `{"attached": whether}`, each answer says what is there now."""

    def __init__(self, path: Path, core: Any, put_in: PutIn) -> None:
        super().__init__(name="kvledger-toggle", daemon=True)
        self._path, self._core, self._put_in = path, core, put_in

    def run(self) -> None:
        """Until the conductor hangs up."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(self._path))
            with peer.makefile("r") as lines:
                for line in lines:
                    answer = self._once_idle(bool(json.loads(line)["attached"]))
                    peer.sendall(json.dumps(answer).encode() + b"\n")

    def _once_idle(self, attached: bool) -> dict[str, Any]:
        """Have the engine's own thread do it. An idle engine waits for a message: this is one it has for itself."""
        from vllm.v1.engine import EngineCoreRequestType

        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._core._idle_state_callbacks.append(lambda core: answers.put(self._safely(core.scheduler, attached)))
        self._core.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
        try:
            return answers.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            return {"error": f"the engine was not idle within {PATIENCE_SECONDS:g} s"}

    def _safely(self, scheduler: Any, attached: bool) -> dict[str, Any]:
        try:
            return self._turn(scheduler, attached)
        except Exception as error:  # noqa: BLE001 - the test is told, and fails; the engine is not to
            return {"error": f"{type(error).__name__}: {error}"}

    def _turn(self, scheduler: Any, attached: bool) -> dict[str, Any]:
        """Take out what is there, in any case; then maybe put in a new one. Its ledger is the next epoch."""
        from vllm.utils.gc_utils import freeze_gc_heap

        why = take_out(scheduler)
        ledger = None
        if attached:
            instrument = self._put_in(scheduler)
            ledger, why = instrument.ledger, why or instrument.switch.why
        # As vLLM does once it has started, when the plugin is there already: neither kind has more to look through.
        freeze_gc_heap()
        if why:
            return {"error": f"the instrument has switched itself off: {why}"}
        return {"ledger": str(ledger.path) if ledger is not None else None, "traces": traces(scheduler)}


def take_out(scheduler: Any) -> str:
    """The scheduler becomes what it is without the plugin, its ledger is closed. Returns why it was off, if it was."""
    instrument = scheduler.__dict__.pop("kvledger", None)
    if instrument is None:
        return ""
    if instrument.stop is not None:
        instrument.stop()
    why: str = instrument.switch.why
    return why


def traces(scheduler: Any) -> list[str]:
    """The attributes of vLLM's objects, as far as a scheduler leads to them, that are of the instrument's making."""
    found: list[str] = []
    seen, left = {id(scheduler)}, [("scheduler", scheduler)]
    while left:
        name, owner = left.pop()
        for attribute, value in getattr(owner, "__dict__", {}).items():
            for part in value if isinstance(value, list | tuple) else (value,):
                if id(part) in seen:
                    continue
                seen.add(id(part))
                if _home(part).startswith(("kvledger", "tests.")):
                    found.append(f"{name}.{attribute}")
                elif type(part).__module__.startswith("vllm."):
                    left.append((f"{name}.{attribute}", part))
    return sorted(found)


def _home(value: Any) -> str:
    """The module a value's code is in. `functools.wraps` changes what a function says of itself, not its globals."""
    names = getattr(getattr(value, "__func__", value), "__globals__", None)
    return str(names.get("__name__", "")) if isinstance(names, dict) else type(value).__module__
