"""How the instrument gets into an engine core: every scheduler that is made gets a ledger of its own."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvledger.writer import Ledger
from kvledger_vllm.capabilities import blind_spots
from kvledger_vllm.channel import Sender
from kvledger_vllm.companion import Companion
from kvledger_vllm.errors import InstrumentError
from kvledger_vllm.geometry import limits_of
from kvledger_vllm.hooks import Hooks
from kvledger_vllm.notes import Notes
from kvledger_vllm.settings import Settings
from kvledger_vllm.switch import Switch
from kvledger_vllm.tap import Tap

# vLLM shows what is logged below its own name, and nothing else.
logger = logging.getLogger("vllm.kvledger")

_MARK = "_kvledger_watched"
PATIENCE_SECONDS = 5.0
"""How long an engine core that ends waits for its mirror."""


def watch_schedulers(settings: Settings) -> None:
    """From now on, attach to every Scheduler this process makes. Idempotent; without vLLM's Scheduler, nothing."""
    switch = Switch()

    def patch() -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        if getattr(Scheduler.__init__, _MARK, False):
            return
        made = Scheduler.__init__

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            attach(self, settings)

        setattr(init, _MARK, True)
        Scheduler.__init__ = init

    switch.run(patch)


@dataclass(slots=True)
class Instrument:
    """What is attached to one scheduler. `ledger` is None where none could be made; the switch says why.

    The engine core creates the ledger and keeps its file and its lock; the mirror, a process of its own, writes it.
    """

    switch: Switch
    ledger: Ledger | None = None
    tap: Tap | None = None
    mirror: Companion | None = None
    hooks: Hooks | None = None
    stop: Callable[[], None] | None = None

    def await_applied(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until the ledger says everything that has happened; False where it does not. In the engine's thread."""
        if self.mirror is None or self.tap is None:
            return False
        self.switch.run(self.tap.tell)
        return self.mirror.await_applied(seconds)


def attach(scheduler: Any, settings: Settings) -> Instrument:
    """Give a scheduler a ledger and mirror it from now on. Never raises: the instrument's switch says why it is off."""
    instrument = Instrument(Switch())

    def begin() -> None:
        for spot in blind_spots(scheduler):
            logger.warning("%s", spot)
        limits = limits_of(scheduler, settings)
        instrument.ledger = ledger = Ledger.create(settings.directory, limits, allow_disk=settings.allow_disk)
        instrument.switch.watch(ledger)
        sender, notes = Sender.create(blocks=limits.capacity_blocks), Notes()
        instrument.mirror = mirror = Companion(ledger, sender)
        instrument.switch.on_failure(lambda: mirror.end(0))
        instrument.tap = tap = Tap(scheduler, notes, sender, mirror.ended)

        def close(clean: bool) -> None:
            tap.close(clean)
            if not mirror.await_applied(PATIENCE_SECONDS):
                raise InstrumentError("the mirror has not applied everything")
            ledger.leave(clean=clean)
            mirror.end(PATIENCE_SECONDS)
            instrument.switch.retire()

        instrument.hooks = hooks = Hooks(scheduler, notes, tap, instrument.switch, close)
        instrument.switch.on_failure(hooks.remove)
        hooks.put_in()
        instrument.stop = hooks.stop
        _close_before_teardown()
        logger.info("mirroring this engine core in %s", ledger.path)

    instrument.switch.run(begin)
    scheduler.kvledger = instrument
    return instrument


def _close_before_teardown() -> None:
    """Close ledgers at the beginning of a core's shutdown: it may be killed while it awaits its workers."""
    core = sys.modules.get("vllm.v1.engine.core")
    if core is None or getattr(core.EngineCore.shutdown, _MARK, False):
        return
    original = core.EngineCore.shutdown

    @functools.wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        instrument = getattr(getattr(self, "scheduler", None), "kvledger", None)
        if instrument is not None and instrument.stop is not None:
            instrument.stop()
        return original(self, *args, **kwargs)

    setattr(shutdown, _MARK, True)
    core.EngineCore.shutdown = shutdown
