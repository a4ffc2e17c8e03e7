"""The switch: whether the instrument is on, and the only place where its errors end. vLLM never sees one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvledger.writer import Ledger

# vLLM shows what is logged below its own name, and nothing else.
logger = logging.getLogger("vllm.kvledger")


class Switch:
    """On until the first error; then the ledger says so, the hooks are taken out, and it stays off."""

    def __init__(self) -> None:
        self.on = True
        self.why = ""
        self._ledger: Ledger | None = None
        self._undo: list[Callable[[], None]] = []

    def watch(self, ledger: Ledger) -> None:
        """The ledger that is to say why, should the instrument fail."""
        self._ledger = ledger

    def on_failure(self, undo: Callable[[], None]) -> None:
        """What takes the instrument out of the engine."""
        self._undo.append(undo)

    def run(self, action: Callable[[], None]) -> None:
        """Do something of the instrument's, if it is on. Never raises."""
        if not self.on:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the engine
            self.fail(error)

    def retire(self) -> None:
        """Switch off for good without a failure."""
        self.on = False

    def guard(self, note: Callable[..., None]) -> Callable[..., None]:
        """`note` for a hook to call: does nothing once this is off, and what it raises ends here."""

        def guarded(*args: Any, **kwargs: Any) -> None:
            if not self.on:
                return
            try:
                note(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the engine
                self.fail(error)

        return guarded

    def fail(self, error: BaseException) -> None:
        """Switch off for good: log once, mark the ledger, take the hooks out. Never raises."""
        if not self.on:
            return
        self.on = False
        self.why = f"{type(error).__name__}: {error}"
        logger.error("the instrument switched itself off, vLLM goes on: %s", self.why, exc_info=error)
        for step in (*self._undo, self._mark):
            try:
                step()
            except Exception as again:  # noqa: BLE001 - nor may this
                logger.error("%s while switching off: %s", type(again).__name__, again)

    def _mark(self) -> None:
        if self._ledger is not None:
            self._ledger.instrument_failed(self.why)
