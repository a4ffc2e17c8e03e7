"""An OTLP receiver over real HTTP: keeps what it is sent, and misbehaves as it is told to."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

OK, UNAVAILABLE, SLOW, RESET = "ok", "unavailable", "slow", "reset"
MOVED, REFUSED, PARTIAL, CHATTY = "moved", "refused", "partial", "chatty"
_STATUS = {UNAVAILABLE: 503, MOVED: 308, REFUSED: 401}


class Receiver(ThreadingHTTPServer):
    """Answers as `mood` says. `requests` are the parsed bodies, with path and headers; `arrived` wakes on each."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.mood = OK
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        self.arrived = threading.Semaphore(0)
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """The endpoint, without the path of metrics."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that break: they are meant to."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        server.requests.append(
            (self.path, {k.lower(): v for k, v in self.headers.items()}, ExportMetricsServiceRequest.FromString(body))
        )
        mood = server.mood
        server.arrived.release()
        if mood == RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())  # a close that is not preceded by a shutdown: the peer sees a reset
            self.close_connection = True
            return
        if mood == SLOW:
            server.released.wait(30)
        answer = ExportMetricsServiceResponse()
        if mood == PARTIAL:
            answer.partial_success.rejected_data_points = 3
            answer.partial_success.error_message = "too old"
        self._answer(_STATUS.get(mood, 200), b'{"ok": true}' if mood == CHATTY else answer.SerializeToString())

    def _answer(self, status: int, answer: bytes) -> None:
        self.send_response(status)
        if status == _STATUS[MOVED]:
            self.send_header("Location", "https://elsewhere.invalid/v1/metrics")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test reads `requests`."""


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that serves until the block ends."""
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            receiver.shutdown()
            thread.join()
