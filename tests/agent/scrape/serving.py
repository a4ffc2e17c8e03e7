"""A small engine over HTTP: serves given answers by path, on a free port of the loopback."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PAGES = Path(__file__).with_name("pages")


@dataclass
class Served:
    """What is answered, by path: (status, content type, body). `asked` are the paths that were asked for."""

    url: str = ""
    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    def put(self, path: str, body: bytes, *, status: int = 200, kind: str = "text/plain; version=0.0.4") -> None:
        self.answers[path] = (status, kind, body)


@contextmanager
def serving(answers: Mapping[str, bytes] | None = None) -> Iterator[Served]:
    """Serve until the block ends. The path `/hold` answers nothing until `hold` is set."""
    served = Served()
    for path, body in (answers or {}).items():
        served.put(path, body)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            if self.path == "/hold":
                served.hold.wait(10)
            status, kind, body = served.answers.get(self.path, (404, "application/json", b'{"detail":"Not Found"}'))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status in (301, 302):
                self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        served.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


def page(name: str) -> bytes:
    """One of the written pages."""
    return (PAGES / name).read_bytes()
