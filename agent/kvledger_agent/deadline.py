"""A bound on a whole exchange over a socket, whose own timeouts begin anew with every byte that trickles in."""

from __future__ import annotations

import socket
import threading
import time


class Deadline:
    """Ends a connection when its time is up. A context manager around the exchange."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._socket = connection
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    @property
    def passed(self) -> bool:
        """Whether the time is up, whatever the cut looked like to the reader."""
        return time.monotonic() >= self._end

    def _cut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself in the same moment

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
