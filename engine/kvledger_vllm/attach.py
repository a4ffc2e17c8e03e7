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
from kvledger_vllm.geometry import limits_of
from kvledger_vllm.hooks import Hooks
from kvledger_vllm.notes import Notes
from kvledger_vllm.publication import Publisher
from kvledger_vllm.settings import Settings
from kvledger_vllm.switch import Switch

# vLLM shows what is logged below its own name, and nothing else.
logger = logging.getLogger("vllm.kvledger")

_MARK = "_kvledger_watched"


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
    """What is attached to one scheduler. `ledger` is None where none could be made; the switch says why."""

    switch: Switch
    ledger: Ledger | None = None
    publisher: Publisher | None = None
    stop: Callable[[], None] | None = None


def attach(scheduler: Any, settings: Settings) -> Instrument:
    """Give a scheduler a ledger and mirror it from now on. Never raises: the instrument's switch says why it is off."""
    instrument = Instrument(Switch())

    def begin() -> None:
        for spot in blind_spots(scheduler):
            logger.warning("%s", spot)
        limits = limits_of(scheduler, settings)
        instrument.ledger = ledger = Ledger.create(settings.directory, limits, allow_disk=settings.allow_disk)
        instrument.switch.watch(ledger)
        notes = Notes()
        instrument.publisher = Publisher(ledger, scheduler, notes)
        hooks = Hooks(scheduler, notes, instrument.publisher, instrument.switch, ledger)
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
