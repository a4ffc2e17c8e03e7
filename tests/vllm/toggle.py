"""A vLLM plugin for benches and tests: takes the hooks out of a running engine core, and puts them in again, in turns.

Active only if KVLEDGER_TEST_HOOK names a directory with the socket of a `tests.vllm.conductor`. It acts between two
steps, in the engine core's own thread; how long steps take is measured there, too.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.vllm.debug_hook import PATIENCE_SECONDS, Attach, replace_attach

_MOST_SECONDS_A_WINDOW = 10.0
INSTRUMENT = "scheduler.kvledger"
"""Where a scheduler's instrument is to be found, whether its hooks are in or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Steps of a window, those between two that are not measured, and those before the first, until the load is what
    it will be.
    """

    steps: int
    settling: int
    ramp: int


@dataclass(slots=True)
class Window:
    """Steps of an engine core under load, with the instrument or without: from one output to a later one."""

    plugged: bool
    seconds: float = 0.0
    tokens: int = 0
    messages: int = 0
    """What the tap sent in it."""
    traces: list[str] = field(default_factory=list)
    """What of the instrument's was found in the scheduler at its end."""


def register() -> None:
    """The entry point: from now on an engine core with a ledger obeys a conductor. Idempotent."""

    def toggled(original: Attach, socket_path: Path) -> Attach:
        def attach(scheduler: Any, settings: Any) -> Any:
            instrument = original(scheduler, settings)
            _listen_from_the_first_step(socket_path, instrument)
            return instrument

        return attach

    replace_attach(toggled)


def _listen_from_the_first_step(path: Path, instrument: Any) -> None:
    """Schedulers are made while the engine core is; the loop is entered once, when all of it is there."""
    proc = sys.modules["vllm.v1.engine.core"].EngineCoreProc
    run_busy_loop = proc.run_busy_loop

    def listening_run_busy_loop(core: Any) -> Any:
        Toggle(path, core, instrument).start()
        return run_busy_loop(core)

    proc.run_busy_loop = listening_run_busy_loop


class Toggle(threading.Thread):
    """Waits on the conductor's socket; a line says how many windows of what `Pace`, the answer what was measured."""

    def __init__(self, path: Path, core: Any, instrument: Any) -> None:
        super().__init__(name="kvledger-toggle", daemon=True)
        self._path, self._core, self._instrument = path, core, instrument

    def run(self) -> None:
        """Until the conductor hangs up."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(self._path))
            with peer.makefile("r") as lines:
                for line in lines:
                    command = json.loads(line)
                    answer = self._measured(command["windows"], Pace(**command["pace"]))
                    peer.sendall(json.dumps(answer).encode() + b"\n")

    def _measured(self, count: int, pace: Pace) -> dict[str, Any]:
        windows = Windows(self._core, self._instrument, count, pace)
        self._core.step_fn = windows.step
        if not windows.done.wait(PATIENCE_SECONDS + count * _MOST_SECONDS_A_WINDOW):
            return {"error": f"the load ended before {count} windows were over"}
        if windows.why:
            return {"error": windows.why}
        return {"windows": [asdict(window) for window in windows.over]}


class Windows:
    """Runs an engine core's steps in its place, and between two of them puts the hooks in or takes them out."""

    def __init__(self, core: Any, instrument: Any, count: int, pace: Pace) -> None:
        self._core, self._original, self._instrument = core, core.step_fn, instrument
        self._count, self._pace = count, pace
        self._steps = self._began_ns = self._sent = self._told = 0
        self._plugged = True
        self._window: Window | None = None
        self.over: list[Window] = []
        self.why = ""
        self.done = threading.Event()

    def step(self) -> Any:
        """One step of the engine's. Counts those whose output is there."""
        result = self._original()
        outputs = result[0]
        if outputs is not None:
            self._steps += 1
            if self._window is not None:
                self._window.tokens += sum(len(of_client.outputs) for of_client in outputs.values())
            try:
                self._after()
            except Exception as error:  # noqa: BLE001 - the bench is told, and fails; the engine is not to
                self._end(f"{type(error).__name__}: {error}")
        return result

    def _after(self) -> None:
        if self._window is None:
            if self._steps == 1 and not self.over:
                self._turn(plugged=False)
            if self._steps >= (self._pace.settling if self.over else self._pace.ramp) and self._caught_up():
                self._begin()
        elif self._steps >= self._pace.steps:
            self._complete(self._window)

    def _caught_up(self) -> bool:
        """Whether the mirror is done with the statement of everything, which comes when the hooks are put in."""
        instrument = self._instrument
        return not self._plugged or instrument.tap.sent - instrument.mirror.missing >= self._told

    def _begin(self) -> None:
        self._steps, self._sent = 0, self._instrument.tap.sent
        self._window, self._began_ns = Window(self._plugged), time.monotonic_ns()

    def _complete(self, window: Window) -> None:
        window.seconds = (time.monotonic_ns() - self._began_ns) / 1e9
        window.messages = self._instrument.tap.sent - self._sent
        window.traces = [name for name in traces(self._core.scheduler) if name != INSTRUMENT]
        self.over.append(window)
        self._window, self._steps = None, 0
        if why := self._instrument.switch.why:
            raise RuntimeError(f"the instrument has switched itself off: {why}")
        if len(self.over) == self._count:
            self._end("")
        else:
            # Without, with, with, without, and so on: whatever drifts hits both alike.
            self._turn(plugged=len(self.over) % 4 in (1, 2))

    def _turn(self, *, plugged: bool) -> None:
        """Nothing of the hooks is left where they are out; once they are in, they tell everything anew."""
        hooks = self._instrument.hooks
        hooks.remove()
        self._plugged = plugged
        if plugged:
            hooks.put_in()
            self._told = self._instrument.tap.sent

    def _end(self, why: str) -> None:
        self.why = why
        self._core.step_fn = self._original
        self.done.set()


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
