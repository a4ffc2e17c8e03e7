"""The agent's HTTP side: `/metrics`, health, and the JSON API. Serves what was sampled; never reads a ledger itself.

An engine is addressed as `engine:rank`, or by its name where it has one rank only. Errors are
`{"error": {"code", "message"}}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from aiohttp import web

from kvledger.errors import LedgerUnreadable
from kvledger.words import BlockState
from kvledger_agent.agent import Agent, NoLedgerOfEngine, NoSuchEngine, Stale
from kvledger_agent.block_rows import BlockQuery, block_page, compact_blocks
from kvledger_agent.bounds import above_zero
from kvledger_agent.documents import engines_document, findings_document, requests_document, snapshot_document
from kvledger_agent.errors import UsageError
from kvledger_agent.fleet import Fleet
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.observation import Observation
from kvledger_agent.plain import plain
from kvledger_agent.scorecard import scorecard

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AGENT: web.AppKey[Agent] = web.AppKey("agent", Agent)
QUERIES: Mapping[str, tuple[str, ...]] = {
    "blocks": ("view", "state", "owner", "offset", "limit"),
    "waits": ("window_seconds",),
}
"""What the paths under `/v1` take, by their last word; the others take nothing."""

_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (NoSuchEngine, 404, "no_such_engine"),
    (NoLedgerOfEngine, 404, "no_ledger"),
    (UsageError, 400, "bad_request"),
    (Stale, 503, "stale"),
    (TimeoutError, 503, "stale"),
    (LedgerUnreadable, 503, "unreadable"),
)


def make_app(agent: Agent) -> web.Application:
    """The application for one agent, which is started and stopped by somebody else."""
    app = web.Application(middlewares=[_errors])
    app[AGENT] = agent
    app.add_routes(
        [
            web.get("/", _paths),
            web.get("/metrics", _metrics),
            web.get("/healthz", _healthz),
            web.get("/readyz", _readyz),
            web.get("/v1/engines", _engines),
            web.get("/v1/engines/{engine}/snapshot", _snapshot),
            web.get("/v1/engines/{engine}/requests", _requests),
            web.get("/v1/engines/{engine}/blocks", _blocks),
            web.get("/v1/engines/{engine}/findings", _findings),
            web.get("/v1/engines/{engine}/scorecard", _scorecard),
            web.get("/v1/engines/{engine}/sharing", _sharing),
            web.get("/v1/engines/{engine}/waits", _waits),
        ]
    )
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _refuse_unknown(request)
        return await handler(request)
    except tuple(kind for kind, _, _ in _STATUS) as error:
        status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
        return _json({"error": {"code": code, "message": str(error) or "the sampler did not answer in time"}}, status)
    except web.HTTPException as error:
        code = (error.reason or "error").lower().replace(" ", "_")
        return _json({"error": {"code": code, "message": error.reason}}, error.status)


def _refuse_unknown(request: web.Request) -> None:
    """Raises `UsageError` for a parameter that the path does not take: left alone, a misspelt one changes nothing."""
    if not request.path.startswith("/v1/"):
        return
    known = QUERIES.get(request.path.rpartition("/")[2], ())
    for name in request.query:
        if name not in known:
            raise UsageError(f"no parameter {name[:40]!r} here: use {', '.join(known) or 'none'}")


async def _metrics(request: web.Request) -> web.StreamResponse:
    agent, accept = request.app[AGENT], request.headers.get("Accept", "")
    # Rendering a page takes tens of milliseconds once per round; health checks must not wait for it.
    body, content_type = await asyncio.to_thread(agent.metrics_page, accept)
    return web.Response(body=body, headers={"Content-Type": content_type})


async def _paths(request: web.Request) -> web.StreamResponse:
    resources = request.app.router.resources()
    return _json({"paths": [resource.canonical for resource in resources if resource.canonical != "/"]})


async def _healthz(request: web.Request) -> web.StreamResponse:
    return _json({"status": "ok"})


async def _readyz(request: web.Request) -> web.StreamResponse:
    fleet = request.app[AGENT].fresh_fleet()
    return _json({"status": "ok", "sample_age_seconds": fleet.age_seconds(time.monotonic_ns())})


async def _engines(request: web.Request) -> web.StreamResponse:
    return _json(engines_document(request.app[AGENT].fresh_fleet(), time.monotonic_ns()))


async def _snapshot(request: web.Request) -> web.StreamResponse:
    return _json(snapshot_document(_observation(request)))


async def _findings(request: web.Request) -> web.StreamResponse:
    observation = _observation(request)
    return _json({"id": observation.identity.key, **findings_document(observation)})


async def _scorecard(request: web.Request) -> web.StreamResponse:
    return _json(plain(scorecard(_observation(request))))


async def _sharing(request: web.Request) -> web.StreamResponse:
    observation = _observation(request)
    return _json({"id": observation.identity.key, "sharing": plain(observation.sharing)})


async def _waits(request: web.Request) -> web.StreamResponse:
    window_seconds = _above_zero(request, "window_seconds", request.app[AGENT].config.verdict_window_seconds)
    return await _asked(request, lambda source: {"waits": plain(source.waits(window_seconds))})


async def _requests(request: web.Request) -> web.StreamResponse:
    def question(source: LedgerSource) -> dict[str, Any]:
        sample = source.reader.sample()
        return requests_document(sample, source.reader.audit())

    return await _asked(request, question)


async def _blocks(request: web.Request) -> web.StreamResponse:
    view = request.query.get("view", "page")
    if view not in ("page", "compact"):
        raise UsageError(f"view={view!r}: use page or compact")
    query = _block_query(request)

    def question(source: LedgerSource) -> dict[str, Any]:
        audit = source.reader.audit()
        return compact_blocks(audit) if view == "compact" else block_page(audit, query, now_ns=audit.now_ns)

    return await _asked(request, question)


async def _asked(request: web.Request, question: Callable[[LedgerSource], dict[str, Any]]) -> web.StreamResponse:
    """Answer from a fresh look, taken by the sampling thread and turned into bytes there."""
    agent, key = request.app[AGENT], _key(request)

    def answer(source: LedgerSource) -> bytes:
        return _bytes({"id": key, **question(source)})

    future: Future[bytes] = agent.ask(key, answer)
    async with asyncio.timeout(agent.config.stale_after_seconds):
        body = await asyncio.wrap_future(future)
    return web.Response(body=body, content_type="application/json")


def _key(request: web.Request) -> str:
    """The engine a path means. Raises `NoSuchEngine`, or `UsageError` for a name that several ranks share."""
    return resolve(request.app[AGENT].fresh_fleet(), request.match_info["engine"])


def resolve(fleet: Fleet, name: str) -> str:
    """`engine:rank` for `engine:rank` or an unambiguous engine name. Raises `NoSuchEngine` or `UsageError`."""
    keys = [source.source for source in fleet.sources]
    if name in keys:
        return name
    ranks = [key for key in keys if key.rpartition(":")[0] == name]
    if len(ranks) > 1:
        raise UsageError(f"engine {name!r} has several ranks: ask for one of {', '.join(ranks)}")
    if not ranks:
        raise NoSuchEngine(f"no engine {name!r}: there are {', '.join(keys) or 'none'}")
    return ranks[0]


def _observation(request: web.Request) -> Observation:
    key = _key(request)
    fleet = request.app[AGENT].fresh_fleet()
    for observation in fleet.observations:
        if observation.identity.key == key:
            return observation
    source = next(source for source in fleet.sources if source.source == key)
    raise LedgerUnreadable(f"{source.path} is {source.status}: {source.error}")


def _block_query(request: web.Request) -> BlockQuery:
    word = request.query.get("state")
    if word is not None and word not in BlockState.words():
        raise UsageError(f"state={word!r}: use one of {', '.join(BlockState.words())}")
    return BlockQuery(
        state=None if word is None else BlockState[word.upper()],
        owner=_number(request, "owner", None),
        offset=_number(request, "offset", 0) or 0,
        limit=_number(request, "limit", 1000) or 0,
    )


def _number(request: web.Request, name: str, default: int | None) -> int | None:
    given = request.query.get(name)
    if given is None:
        return default
    if not given.isdecimal() or len(given) > 20 or int(given) >= 1 << 64:
        raise UsageError(f"{name}={given!r}: use a whole number of 0 or more")
    return int(given)


def _above_zero(request: web.Request, name: str, default: float) -> float:
    given = request.query.get(name)
    if given is None:
        return default
    try:
        return above_zero(name, float(given))
    except ValueError as error:
        raise UsageError(f"{name}={given[:40]!r}: use a number above 0") from error


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _json(document: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=_bytes(document), status=status, content_type="application/json")
