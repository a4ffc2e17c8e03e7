"""A client of the agent's JSON API: bounded in time and size, with an error for each way it fails. Standard library.

Knows addresses, limits and errors; judges nothing, keeps nothing, and follows neither proxies nor redirects.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
from numpy.typing import NDArray

from kvledger_agent.addresses import http_parts
from kvledger_agent.deadline import Deadline
from kvledger_agent.errors import AgentError, UsageError

DEFAULT_URL = "http://127.0.0.1:9470"
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
Document = dict[str, Any]


class ClientError(AgentError):
    """Base of what can go wrong between a client and the agent."""


class AgentUnreachable(ClientError):
    """Nobody answers at the address, or not within the time allowed."""


class AgentStale(ClientError):
    """The agent runs, but its last sample is too old (503 `stale`): what it last saw is not shown as the present."""


class UnknownEngine(ClientError):
    """The agent watches no such engine (404 `no_such_engine`)."""


class NoLedger(ClientError):
    """The engine is scraped (404 `no_ledger`): requests and blocks are what only a ledger tells."""


class EngineUnreadable(ClientError):
    """The agent cannot read this engine's ledger (503 `unreadable`); the message is the agent's reason."""


class BadAnswer(ClientError):
    """The answer is not one of this API: too large, not JSON, another shape, or an error the client does not know."""


_ERRORS: Mapping[str, type[ClientError]] = {
    "stale": AgentStale,
    "no_such_engine": UnknownEngine,
    "no_ledger": NoLedger,
    "unreadable": EngineUnreadable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockArrays:
    """Every block of one pool, by id. `owner` is the serial of the request that allocated it, 0 for none.

    `states` gives the word of each number in `state`; `consistent` says that no publication went on meanwhile.
    """

    capacity_blocks: int
    published_seq: int
    consistent: bool
    states: tuple[str, ...]
    state: NDArray[np.uint8]
    ref_count: NDArray[np.int32]
    owner: NDArray[np.uint64]


class AgentClient:
    """Questions to one agent. Every call opens a connection of its own, so an object may be shared by threads.

    `timeout_seconds` bounds connecting, and then the whole answer; `max_bytes` the answer's size.
    """

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self.url = check_url(url)
        self._timeout_seconds, self._max_bytes = timeout_seconds, max_bytes

    def engines(self) -> Document:
        """`/v1/engines`: `sample_age_seconds` and one line per source. Raises `ClientError`."""
        return _with_list(self.get("/v1/engines"), "engines")

    def snapshot(self, engine: str) -> Document:
        """Everything known of one engine in numbers. Raises `ClientError`."""
        return self.get(_path(engine, "snapshot"))

    def requests(self, engine: str) -> Document:
        """Every live request, and every pin. Raises `ClientError`."""
        return _with_list(self.get(_path(engine, "requests")), "requests")

    def waits(self, engine: str, *, window_seconds: float) -> Document:
        """What first tokens and whole requests are made of, and who waits longest. Raises `ClientError`."""
        query = urlencode({"window_seconds": f"{window_seconds:g}"})
        waits = self.get(_path(engine, "waits") + "?" + query).get("waits")
        if not isinstance(waits, dict):
            raise BadAnswer("the agent's answer has no object 'waits': it is of another version")
        return waits

    def block(self, engine: str, block: int) -> Document:
        """One block's row as it is now. Raises `ClientError`, `BadAnswer` for a block the pool does not have."""
        rows = _with_list(self.get(_path(engine, "blocks") + "?" + urlencode({"offset": block, "limit": 1})), "blocks")
        if not rows["blocks"]:
            raise BadAnswer(f"there is no block {block}: the pool has {rows.get('total')}")
        return dict(rows["blocks"][0])

    def blocks(self, engine: str) -> BlockArrays:
        """State, reference count and owner of every block. Raises `ClientError`."""
        return _arrays(self.get(_path(engine, "blocks") + "?view=compact"))

    def get(self, path: str) -> Document:
        """The JSON object at `path`. Raises `ClientError`."""
        status, body = self._exchange(path)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"{self.url}{path} answered {status} with what is not JSON: is it an agent?") from error
        if not isinstance(document, dict):
            raise BadAnswer(f"{self.url}{path} answered {status} with JSON that is no object")
        if status == http.client.OK:
            return document
        raise _error(document, f"{self.url}{path} answered {status}")

    def _exchange(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._timeout_seconds)
        try:
            connection.connect()
            with Deadline(connection.sock, self._timeout_seconds) as deadline:
                try:
                    connection.request("GET", parts.path.rstrip("/") + path, headers={"Accept": "application/json"})
                    response = connection.getresponse()
                    body = self._read(response, path)
                finally:
                    self._check(deadline)
                return response.status, body
        except (OSError, http.client.HTTPException) as error:
            raise AgentUnreachable(f"no agent answers at {self.url}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()

    def _check(self, deadline: Deadline) -> None:
        """Raises `AgentUnreachable` when the time is up, whatever else the cut looked like."""
        if deadline.passed:
            raise AgentUnreachable(f"the agent at {self.url} did not answer within {self._timeout_seconds:g} s")

    def _read(self, response: http.client.HTTPResponse, path: str) -> bytes:
        body = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > self._max_bytes:
                raise BadAnswer(f"{self.url}{path} answers with more than {self._max_bytes:,} bytes")
        return bytes(body)


def check_url(url: str) -> str:
    """The address without a trailing slash. Raises `UsageError` for what is no http or https address."""
    parts = http_parts(url)
    if "@" in url:
        raise UsageError("the agent's address carries credentials, which everybody sees in the list of processes")
    if parts is None or parts.query or parts.fragment:
        raise UsageError(f"agent address {url[:200]!r}: give one such as {DEFAULT_URL}")
    return url.rstrip("/")


def _path(engine: str, what: str) -> str:
    return f"/v1/engines/{quote(engine, safe=':')}/{what}"


def _error(document: Document, what: str) -> ClientError:
    error = document.get("error")
    if not isinstance(error, dict):
        return BadAnswer(what)
    return _ERRORS.get(str(error.get("code")), BadAnswer)(str(error.get("message") or what))


def _with_list(document: Document, name: str) -> Document:
    if not isinstance(document.get(name), list):
        raise BadAnswer(f"the agent's answer has no list {name!r}: it is of another version")
    return document


def _arrays(document: Document) -> BlockArrays:
    try:
        capacity = int(document["capacity_blocks"])
        state, ref_count, owner = (_array(document["arrays"][name]) for name in ("state", "ref_count", "owner"))
        if {len(state), len(ref_count), len(owner)} != {capacity}:
            raise BadAnswer(f"the agent's arrays are not of {capacity} blocks")
        return BlockArrays(
            capacity_blocks=capacity,
            published_seq=int(document["published_seq"]),
            consistent=bool(document["consistent"]),
            states=tuple(document["states"]),
            state=state.astype(np.uint8),
            ref_count=ref_count.astype(np.int32),
            owner=owner.astype(np.uint64),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"the agent's block arrays cannot be read: {error!r}") from error


def _array(given: Mapping[str, str]) -> NDArray[Any]:
    if given["type"] not in ("<u1", "<i4", "<u8"):
        raise BadAnswer(f"the agent's block arrays have elements of type {given['type']!r}")
    try:
        return np.frombuffer(base64.b64decode(given["data"], validate=True), given["type"])
    except binascii.Error as error:
        raise BadAnswer("the agent's block arrays are not base64") from error
