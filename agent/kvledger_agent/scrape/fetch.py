"""One bounded GET: in time, in size, following neither redirects nor proxies. Knows errors; parses nothing."""

from __future__ import annotations

import http.client
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from kvledger_agent.deadline import Deadline
from kvledger_agent.scrape.errors import BadStatus, NotMetrics, ScrapeFailed, TimedOut, TooLarge, Unreachable
from kvledger_agent.scrape.page import MAX_PAGE_BYTES

TIMEOUT_SECONDS = 4.0
MAX_EXTRA_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_ACCEPT = "text/plain;version=0.0.4, application/json;q=0.5"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered with 200, and as what."""

    body: bytes
    content_type: str

    @property
    def looks_like_json(self) -> bool:
        """Whether it is JSON rather than a metrics page."""
        return self.body.lstrip()[:1] in (b"{", b"[")


def fetch(base: str, path: str, *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_PAGE_BYTES) -> Answer:
    """The body at `path` below `base`. Raises a `ScrapeFailed` subclass that names the address and the remedy."""
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
    try:
        connection.connect()
        with Deadline(connection.sock, timeout_seconds) as deadline:
            try:
                return _exchange(connection, parts, path, max_bytes)
            except (OSError, http.client.HTTPException) as error:
                if deadline.passed:
                    raise _late(base, path, timeout_seconds) from error
                raise
    except TimeoutError as error:
        raise _late(base, path, timeout_seconds) from error
    except (OSError, http.client.HTTPException) as error:
        what = str(error) or type(error).__name__
        raise Unreachable(f"nobody answers at {base}: {what}; does the engine run, and is this its port?") from error
    finally:
        connection.close()


def fetch_page(base: str, path: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
    """Like `fetch`, of what can be a metrics page or JSON. Raises `NotMetrics` for HTML and for nothing at all."""
    answer = fetch(base, path, timeout_seconds=timeout_seconds)
    start = answer.body.lstrip()[:1]
    if not start:
        raise NotMetrics(f"{base}{path} answers with nothing")
    if start == b"<" or "html" in answer.content_type:
        raise NotMetrics(f"{base}{path} answers with HTML: it is no metrics page; give the engine's own port")
    return answer


def _exchange(connection: http.client.HTTPConnection, parts: SplitResult, path: str, max_bytes: int) -> Answer:
    connection.request("GET", parts.path.rstrip("/") + path, headers={"Accept": _ACCEPT, "User-Agent": "kvledger"})
    # A response that is left unread keeps its socket, whatever becomes of the connection.
    with closing(connection.getresponse()) as response:
        if response.status != http.client.OK:
            raise _refused(parts, path, response.status)
        body = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > max_bytes:
                raise TooLarge(f"{parts.geturl()}{path} answers with more than {max_bytes:,} bytes: it is not read")
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        return Answer(bytes(body), response.headers.get_content_type())


def _refused(parts: SplitResult, path: str, status: int) -> ScrapeFailed:
    remedies = {
        301: "redirects are not followed: give the address it leads to",
        302: "redirects are not followed: give the address it leads to",
        307: "redirects are not followed: give the address it leads to",
        308: "redirects are not followed: give the address it leads to",
        401: "it asks for credentials: give an address within the network that does not",
        403: "it asks for credentials: give an address within the network that does not",
        404: "another path may have it: TensorRT-LLM serves /prometheus/metrics, SGLang without --enable-metrics "
        "/v1/loads, llama.cpp needs --metrics, Dynamo serves on its DYN_SYSTEM_PORT; "
        "kvledger's own engine serves none, and is watched by its ledger",
        501: "the server has it switched off: llama.cpp needs --metrics",
    }
    remedy = remedies.get(status, "look at the engine's log")
    return BadStatus(f"{parts.geturl()}{path} answers with {status}; {remedy}", status)


def _late(base: str, path: str, seconds: float) -> TimedOut:
    return TimedOut(f"{base}{path} did not answer within {seconds:g} s: the server is overloaded, or hangs")
