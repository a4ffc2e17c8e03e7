"""Terminations: the signals that ask a process to end, made something that a `poll` can wait for.

Owns the handlers while they are watched; what the process does about a signal is the process's own.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminations:
    """Counts SIGTERM and SIGINT, and wakes a `poll` on its descriptor: the first drains, the second cancels."""

    def __init__(self) -> None:
        self.count = 0
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    @contextmanager
    def watched(self) -> Iterator[Terminations]:
        """Install the handlers, from the main thread, and remove them and the descriptors at the end."""
        signal.set_wakeup_fd(self._woken.fileno())
        before = {number: signal.signal(number, self._count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            self.close()

    def fileno(self) -> int:
        """Readable after a signal."""
        return self._wake.fileno()

    def close(self) -> None:
        """Close the descriptors."""
        self._wake.close()
        self._woken.close()

    def acknowledge(self) -> None:
        """Make `fileno` unreadable until the next signal."""
        try:
            while self._wake.recv(64):
                pass
        except BlockingIOError:
            return
