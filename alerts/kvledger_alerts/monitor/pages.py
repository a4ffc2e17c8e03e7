"""The runbook on loopback, so that the links of alerts lead somewhere. Serves no file but the runbook's."""

from __future__ import annotations

import html
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from markdown_it import MarkdownIt

from kvledger_alerts.monitor.server import HOST, PortTaken
from kvledger_alerts.runbook_pages import RUNBOOK, TRIAGE

PREFIX = "/runbook/"
REQUEST_SECONDS = 10.0
"""Whoever connects and says nothing keeps a thread no longer."""
_STYLE = """
:root{color-scheme:light dark}
body{max-width:54em;margin:2em auto;padding:0 1em;font:16px/1.6 system-ui,sans-serif}
code{font:14px/1.5 ui-monospace,monospace;background:#8882;border-radius:3px;padding:1px 4px}
pre{background:#8882;border-radius:6px;padding:.8em 1em;overflow-x:auto}pre code{background:none;padding:0}
table{border-collapse:collapse}th,td{border:1px solid #8886;padding:.3em .7em;text-align:left;vertical-align:top}
"""
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def page_named(path: str) -> Path | None:
    """The runbook's page that an address's path asks for; `/runbook/` is the triage. None where there is none."""
    pages = {page.stem: page for page in RUNBOOK.glob("*.md")}
    name = path.partition("?")[0].removeprefix(PREFIX).removesuffix(".md")
    return pages.get(name or TRIAGE) if path.startswith(PREFIX) else None


def as_html(title: str, text: str) -> str:
    """A page of Markdown as one of HTML."""
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
    shown: str = _MARKDOWN.render(text)
    return f"{head}<style>{_STYLE}</style>{shown}"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the runbook's pages and 404 for everything else; logs nothing."""

    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        page = page_named(self.path)
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        text = page.read_text()
        body = as_html(text.partition("\n")[0].strip("# "), text).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""


class RunbookServer:
    """Serves the pages from entry to exit, in a thread of its own. Alerts' pages are below `url`, by their names.

    Raises `PortTaken` where it cannot listen.
    """

    def __init__(self, port: int, *, host: str = HOST) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _Handler)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PortTaken(
                f"cannot listen on {host}:{port}: {reason}; choose another host or port (port 0 picks a free one)"
            ) from error
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}{PREFIX}"

    def __enter__(self) -> RunbookServer:
        threading.Thread(target=self._server.serve_forever, name="runbook", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
