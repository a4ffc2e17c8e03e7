"""`kvledger drill` against the real engine, as its agent sees it: sound, leaking, busy, or with nobody to tell."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvledger_agent.drill.levels import POOL, REQUESTS, Level
from kvledger_agent.drill.plan import DrillPlan
from kvledger_agent.drill.report import DrillReport, Outcome, Phase
from kvledger_agent.drill.runner import drill as run_drill
from kvledger_agent.drill.streams import Clients
from kvledger_agent.errors import UsageError
from kvledger_agent.load.client import open_session
from kvledger_agent.load.outcome import Ending, EndKind
from kvledger_agent.load.plan import RequestOptions
from tests.alerts.scenes import Request
from tests.engine.server.process import EngineProcess, environment
from tests.load.endpoint import Endpoint, Seen, serving, stream_slowly
from tests.reliability.processes import AgentProcess

PHASES = ["cancel", "timeout", "reconnect storm"]
SMALL = ("--blocks", "256", "--block-size", "16", "--max-model-len", "2048", "--step-time", "base=10ms")
live = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs("tmpfs")]


def drill(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the document (empty where there is none) and what was said on stderr."""
    ran = subprocess.run(
        [sys.executable, "-m", "kvledger_agent", "drill", "--json", *arguments],
        env=environment(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, json.loads(ran.stdout) if ran.stdout else {}, ran.stderr


class TestLive:
    pytestmark = live

    def test_a_sound_engine_comes_back_after_every_phase(self, memory: Path) -> None:
        with EngineProcess(memory, *SMALL) as engine, AgentProcess(memory) as agent:
            code, document, said = drill(engine.url, "--agent", agent.url, "--clients", "4")
            engine.assert_nothing_lost()
        report = document["report"]
        assert (code, document["exit_code"], report["outcome"]) == (0, 0, "came_back"), said
        assert [phase["name"] for phase in report["phases"]] == PHASES
        for phase in report["phases"]:
            assert phase["outcome"] == "came_back", phase
            assert phase["held"] > 0
            assert phase["after_blocks"] <= phase["before_blocks"] == 0
            assert phase["came_back_seconds"] > 0
        assert report["phases"][0]["highest_blocks"] >= 4 * 8, "each client's prompt takes eight blocks"
        assert report["phases"][2]["clients"] == 4 * (3 + 1)

    def test_a_leak_of_cancelled_requests_is_exit_code_one_and_said_in_blocks(self, memory: Path) -> None:
        with EngineProcess(memory, *SMALL, "--fault", "skipped_free") as engine, AgentProcess(memory) as agent:
            code, document, said = drill(engine.url, "--agent", agent.url, "--clients", "2", "--patience", "12")
        report = document["report"]
        assert (code, report["outcome"]) == (1, "not_back"), said
        first, *others = report["phases"]
        assert first["outcome"] == "not_back"
        assert first["after_blocks"] > first["before_blocks"] == 0
        assert "blocks more than before" in first["why"]
        assert first["findings"] == ["excess_reference"]
        assert {phase["outcome"] for phase in others} == {"came_back"}, "the fault happens once"

    def test_other_traffic_makes_it_impossible_to_tell(self, memory: Path) -> None:
        with (
            EngineProcess(memory, *SMALL, "--step-time", "base=100ms") as engine,
            AgentProcess(memory) as agent,
            Request(engine.url, prompt_tokens=10, max_tokens=1500) as other,
        ):
            other.first_event()
            code, document, _ = drill(engine.url, "--agent", agent.url, "--patience", "2")
        assert code == 2
        assert {phase["outcome"] for phase in document["report"]["phases"]} == {"cannot_tell"}
        assert "1 requests of others" in document["report"]["phases"][0]["why"]

    def test_without_an_agent_our_engine_has_no_level_to_read(self, memory: Path) -> None:
        with EngineProcess(memory, *SMALL) as engine:
            code, document, said = drill(engine.url)
        assert (code, document) == (2, {}), "at once: no later look could find a page"
        assert "404" in said
        assert "--agent" in said.splitlines()[-1]

    def test_requests_that_are_all_refused_show_nothing(self, memory: Path) -> None:
        with EngineProcess(memory, *SMALL) as engine, AgentProcess(memory) as agent:
            code, document, _ = drill(engine.url, "--agent", agent.url, "--max-tokens", "4000", "--patience", "3")
        assert code == 2
        assert "context_too_long" in document["report"]["phases"][0]["why"]
        assert document["report"]["phases"][0]["refused"] == 8


def test_a_server_that_nobody_runs_is_exit_code_two_with_its_address() -> None:
    code, document, said = drill("http://127.0.0.1:9", "--patience", "2")
    assert (code, document) == (2, {})
    assert "127.0.0.1:9" in said


@pytest.mark.parametrize(
    "wrong", [{"clients": 0}, {"clients": 257}, {"rounds": 99}, {"patience_seconds": float("inf")}]
)
def test_a_drill_out_of_bounds_is_refused_with_the_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        DrillPlan(**wrong)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((Outcome.CAME_BACK, Outcome.CAME_BACK), 0),
        ((Outcome.CANNOT_TELL, Outcome.NOT_BACK), 1),
        ((Outcome.CAME_BACK, Outcome.CANNOT_TELL), 2),
    ],
)
def test_what_did_not_come_back_outweighs_what_cannot_be_told(outcomes: tuple[Outcome, ...], code: int) -> None:
    phases = tuple(Phase(name="cancel", outcome=outcome) for outcome in outcomes)
    assert DrillReport(url="http://x", source="nobody", phases=phases).exit_code == code


def test_a_level_names_the_signals_that_it_lacks() -> None:
    assert Level(blocks=None, running=1, waiting=None, stamp=1).missing == (POOL, REQUESTS)
    assert Level(blocks=0.0, running=0, waiting=0, stamp=1).missing == ()


class SilentLevels:
    """Tells an idle pool, then one that clients hold blocks of, and from then on only the signals in `left`."""

    source = "the page of a server"
    moves_with_steps = False

    def __init__(self, **left: Any) -> None:
        self._left, self._reads = {"blocks": None, "running": None, "waiting": None, **left}, 0

    def read(self) -> Level:
        self._reads += 1
        if self._reads <= 3:
            return Level(blocks=8.0 * (self._reads == 3), running=0, waiting=0, stamp=self._reads)
        return Level(**self._left, stamp=self._reads)


@pytest.mark.parametrize(
    ("left", "untold"),
    [
        ({"running": 0, "waiting": 0}, POOL),
        ({"blocks": 0.0, "waiting": 0}, REQUESTS),
        ({"blocks": 0.0, "running": 0}, REQUESTS),
        ({}, f"{POOL}, {REQUESTS}"),
    ],
)
def test_a_level_that_stops_to_be_told_is_not_taken_for_one_that_came_back(left: dict[str, Any], untold: str) -> None:
    plan = DrillPlan(clients=1, patience_seconds=0.5, give_up_seconds=0.1, rounds=1)

    async def run() -> DrillReport:
        async with serving(stream_slowly(first_seconds=0.0, token_seconds=1.0)) as server:
            return await run_drill(plan, url=server.url, levels=SilentLevels(**left), say=lambda line: None)

    report = asyncio.run(run())

    assert [phase.outcome for phase in report.phases] == [Outcome.CANNOT_TELL] * 3
    assert report.phases[0].held == 1
    assert report.phases[0].why == f"the page of a server does not tell: {untold}"


def test_the_reason_of_a_refusal_is_read_however_its_body_comes() -> None:
    body = json.dumps({"error": {"code": "queue_full", "message": "later"}}).encode()

    async def refuse_in_pieces(_: Endpoint, request: web.Request, __: Seen) -> web.StreamResponse:
        response = web.StreamResponse(status=429)
        await response.prepare(request)
        for at in range(0, len(body), 16):
            await response.write(body[at : at + 16])
            await asyncio.sleep(0.01)
        return response

    async def run() -> Ending | None:
        async with serving(refuse_in_pieces) as server, open_session(RequestOptions()) as session:
            (client,) = Clients(session, server.url, "cell", DrillPlan()).open([0])
            await client.ended()
            return client.ending

    assert asyncio.run(run()) == Ending(EndKind.REJECTED, "queue_full", 429)
