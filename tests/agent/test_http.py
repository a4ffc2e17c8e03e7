"""The agent's HTTP side over a real socket: shapes, errors, and 503 from a sampler that hangs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.http import make_app
from tests.agent.test_bounds import ODD_NUMBERS
from tests.children import Spawn

pytestmark = pytest.mark.needs("tmpfs")
Get = Callable[[str], Awaitable[tuple[int, Any]]]


def served(config: AgentConfig, talk: Callable[[Get, Agent], Awaitable[None]], *, started: bool = True) -> None:
    """Serve an agent, talk to it, stop it."""

    async def run() -> None:
        agent = Agent(config)
        async with TestClient(TestServer(make_app(agent))) as client:

            async def get(path: str) -> tuple[int, Any]:
                async with client.get(path) as answer:
                    text = await answer.text()
                    return answer.status, json.loads(text) if answer.content_type == "application/json" else text

            if started:
                agent.start()
                while (await get("/readyz"))[0] != 200:
                    await asyncio.sleep(0.01)
            try:
                await talk(get, agent)
            finally:
                await asyncio.to_thread(agent.stop)

    asyncio.run(run())


def test_engines_are_listed_with_their_verdict_and_bad_ledgers_with_their_status(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "hold", memory, "a", 0)
    (memory / "bad.0.00000001.kvledger").write_bytes(bytes(9000))

    async def talk(get: Get, agent: Agent) -> None:
        status, document = await get("/v1/engines")
        good, bad = document["engines"]
        assert status == 200
        assert (good["id"], good["engine"], good["rank"], good["status"], good["up"]) == ("a:0", "a", 0, "idle", True)
        assert (good["verdict"]["verdict"], good["findings"]) == ("healthy", 0)
        assert (bad["id"], bad["engine"], bad["status"]) == ("bad:0", None, "not_a_ledger")
        assert "KVLEDGER" in bad["error"]
        status, document = await get("/v1/engines/bad:0/snapshot")
        assert (status, document["error"]["code"]) == (503, "unreadable")

    served(AgentConfig(directory=memory), talk)


def test_the_root_lists_the_paths(memory: Path) -> None:
    async def talk(get: Get, agent: Agent) -> None:
        status, document = await get("/")
        assert status == 200
        assert set(document["paths"]) >= {"/metrics", "/healthz", "/v1/engines", "/v1/engines/{engine}/snapshot"}

    served(AgentConfig(directory=memory), talk, started=False)


def test_the_documents_of_an_engine_have_their_shapes(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "scene", memory)

    async def talk(get: Get, agent: Agent) -> None:
        _, snapshot = await get("/v1/engines/golden:0/snapshot")
        pool = snapshot["pool"]
        assert pool["free_blocks"] + pool["cached_blocks"] + pool["active_blocks"] == pool["capacity_blocks"] == 24
        assert pool["headroom_blocks"] == pool["free_blocks"] + pool["cached_blocks"] - pool["committed_blocks"]
        assert pool["seconds_to_exhaustion"] is None
        assert snapshot["liveness"]["heartbeat_age_seconds"] is None
        assert snapshot["leaked_blocks"] == 0
        assert {"state", "class", "value"} == set(snapshot["requests"]["live"][0])
        assert snapshot["counters"]["rejections_total"][0] == {"labels": ["context_too_long"], "value": 1.0}

        _, held = await get("/v1/engines/golden/requests")
        assert sum(r["blocks"] for r in held["requests"]) == snapshot["groups"][0]["logical_blocks"]
        assert {r["state"] for r in held["requests"]} == {"running", "waiting"}
        assert held["requests"][0]["id_head"].startswith("acme-")

        _, waited = await get("/v1/engines/golden:0/waits?window_seconds=1e6")
        assert waited["waits"]["window_seconds"] == 1e6
        assert waited["waits"]["rows"][0]["whole"]["seconds"].keys() == {"mean", "p50", "p95", "p99"}
        assert waited["waits"]["oldest"][0]["waiting"] >= 1

        _, page = await get("/v1/engines/golden:0/blocks?state=active&limit=4")
        assert (page["total"], len(page["blocks"])) == (pool["active_blocks"], 4)
        _, compact = await get("/v1/engines/golden:0/blocks?view=compact")
        assert set(compact["arrays"]) == {"state", "ref_count", "owner"}

        _, findings = await get("/v1/engines/golden:0/findings")
        assert findings["findings"] == []
        assert set(findings["invariant_violations"].values()) == {0.0}

    served(AgentConfig(directory=memory), talk)


def test_a_leak_is_served_with_its_evidence(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "leak", memory)

    async def talk(get: Get, agent: Agent) -> None:
        for _ in range(200):
            _, document = await get("/v1/engines/leak:0/findings")
            if document["findings"]:
                break
            await asyncio.sleep(0.05)
        (finding,) = document["findings"]
        assert finding["kind"] == "excess_reference"
        assert len(finding["blocks"]) == finding["block_count"] == 3
        assert finding["owner"]["id_head"] == "leaker"
        assert finding["owner"]["ended"] == "cancelled:api"
        assert finding["since_wall_seconds"] > 1e9

    served(AgentConfig(directory=memory, interval_seconds=0.2), talk)


def test_an_engine_of_several_ranks_has_to_be_named_with_its_rank(memory: Path, spawn: Spawn) -> None:
    for rank in range(2):
        spawn("tests.agent.children", "hold", memory, "a", rank)

    async def talk(get: Get, agent: Agent) -> None:
        assert (await get("/v1/engines/a:1/snapshot"))[0] == 200
        status, document = await get("/v1/engines/a/snapshot")
        assert (status, document["error"]["code"]) == (400, "bad_request")
        assert "a:0, a:1" in document["error"]["message"]

    served(AgentConfig(directory=memory), talk)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/engines/none:0/snapshot", 404, "no_such_engine"),
        ("/v1/engines/none:0/requests", 404, "no_such_engine"),
        ("/v1/engines/a:0/blocks?state=lost", 400, "bad_request"),
        ("/v1/engines/a:0/blocks?owner=-1", 400, "bad_request"),
        ("/v1/engines/a:0/blocks?owner=18446744073709551616", 400, "bad_request"),
        ("/v1/engines/a:0/blocks?limit=1e9", 400, "bad_request"),
        ("/v1/engines/a:0/blocks?view=pretty", 400, "bad_request"),
        *((f"/v1/engines/a:0/waits?window_seconds={bad}", 400, "bad_request") for bad in ODD_NUMBERS),
        ("/v1/engines/a:0/waits?window=5", 400, "bad_request"),
        ("/v1/engines/a:0/snapshot?state=free", 400, "bad_request"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
def test_what_cannot_be_answered_says_why(memory: Path, spawn: Spawn, path: str, status: int, code: str) -> None:
    spawn("tests.agent.children", "hold", memory, "a", 0)

    async def talk(get: Get, agent: Agent) -> None:
        got, document = await get(path)
        assert (got, document["error"]["code"]) == (status, code)
        assert document["error"]["message"]

    served(AgentConfig(directory=memory), talk)


WORDS = ("a:0", "a", "none", "", "..", "%00", "a%2F0", "é", "x" * 600, "a:0:0")
DOCUMENTS = ("snapshot", "findings", "scorecard", "sharing", "waits", "requests", "blocks", "nothing", "")
NAMES = ("state", "owner", "offset", "limit", "view", "window_seconds", "", "x", "%00")
VALUES = (
    *ODD_NUMBERS,
    "",
    "0",
    "1",
    "7.5",
    "18446744073709551615",
    "9" * 600,
    "free",
    "compact",
    "page",
    "%00",
    "é",
    "²",
    "٣",
)


def test_whatever_is_asked_is_answered_as_data_or_as_an_error_with_code_and_message(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "hold", memory, "a", 0)
    draw = random.Random(11)

    def asked() -> str:
        query = "&".join(f"{draw.choice(NAMES)}={draw.choice(VALUES)}" for _ in range(draw.randint(0, 3)))
        return f"/v1/engines/{draw.choice(WORDS)}/{draw.choice(DOCUMENTS)}?{query}"

    async def talk(get: Get, agent: Agent) -> None:
        statuses = set()
        for path in (asked() for _ in range(600)):
            status, document = await get(path)
            assert isinstance(document, dict), (path, status, document)
            assert status == 200 or {"code", "message"} == document["error"].keys(), path
            assert status in (200, 400, 404), path
            statuses.add(status)
        assert statuses == {200, 400, 404}

    served(AgentConfig(directory=memory), talk)


def test_before_the_first_sample_the_agent_is_alive_but_not_ready(tmp_path: Path) -> None:
    async def talk(get: Get, agent: Agent) -> None:
        assert (await get("/healthz"))[0] == 200
        for path in ("/readyz", "/metrics", "/v1/engines"):
            status, document = await get(path)
            assert (status, document["error"]["code"]) == (503, "stale")

    served(AgentConfig(directory=tmp_path), talk, started=False)


def test_a_sampler_that_hangs_never_looks_fresh(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "hold", memory, "a", 0)

    async def talk(get: Get, agent: Agent) -> None:
        hang = asyncio.Event()
        loop = asyncio.get_running_loop()
        stuck = agent.ask("a:0", lambda source: asyncio.run_coroutine_threadsafe(hang.wait(), loop).result())
        while (await get("/readyz"))[0] != 503:
            await asyncio.sleep(0.01)

        answers = [await get(path) for path in ("/metrics", "/readyz", "/v1/engines", "/v1/engines/a:0/blocks")]
        assert [status for status, _ in answers] == [503] * 4
        assert (await get("/healthz"))[0] == 200
        hang.set()
        assert await asyncio.wrap_future(stuck)
        while (await get("/metrics"))[0] != 200:
            await asyncio.sleep(0.01)

    served(AgentConfig(directory=memory, interval_seconds=0.1, stale_after_seconds=0.5), talk)


def test_a_question_to_a_hanging_sampler_gives_up(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "hold", memory, "a", 0)

    async def talk(get: Get, agent: Agent) -> None:
        hang = asyncio.Event()
        loop = asyncio.get_running_loop()
        agent.ask("a:0", lambda source: asyncio.run_coroutine_threadsafe(hang.wait(), loop).result())
        status, document = await get("/v1/engines/a:0/requests")
        hang.set()
        assert (status, document["error"]["code"]) == (503, "stale")

    served(AgentConfig(directory=memory, interval_seconds=0.1, stale_after_seconds=0.4), talk)
