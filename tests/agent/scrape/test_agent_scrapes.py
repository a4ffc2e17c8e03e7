"""The agent next to engines that serve pages only: metrics, API and commands see them as any other engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from kvledger.words import SYMPTOM_KINDS, FindingKind, Verdict
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig, resolve
from kvledger_agent.errors import UsageError
from kvledger_agent.exporters.families import engine_families, reported
from kvledger_agent.http import make_app
from kvledger_agent.scrape import scrape_source
from kvledger_agent.scrape.endpoint import parse_endpoint
from kvledger_agent.screen import console, engine_panel
from tests.agent.scrape.serving import page, serving
from tests.children import ENVIRONMENT, ROOT


@contextmanager
def agent_of(tmp_path: Path, *scrape: str, **settings: Any) -> Iterator[Agent]:
    config = AgentConfig(directory=tmp_path / "none", scrape=scrape, scrape_timeout_seconds=0.5, **settings)
    with closing(Agent(config)) as agent:
        yield agent


def samples(agent: Agent) -> dict[tuple[str, ...], float]:
    return {
        (
            sample.name,
            *(value for key, value in sorted(sample.labels.items()) if key not in ("model", "pool")),
        ): sample.value
        for family in text_string_to_metric_families(agent.metrics_text())
        for sample in family.samples
    }


def test_what_a_page_does_not_say_is_no_family_and_a_capability_of_zero(tmp_path: Path) -> None:
    with (
        serving({"/metrics": page("vllm-0.32-busy.prom")}) as served,
        agent_of(tmp_path, f"chat={served.url}") as agent,
    ):
        agent.sample_once()
        found = samples(agent)

    assert found[("kvledger_pool_blocks", "chat", "0", "active")] == 3840
    assert found[("kvledger_pool_capacity_blocks", "chat", "0")] == 4096
    assert found[("kvledger_requests_live", "default", "chat", "1", "running")] == 3
    assert found[("kvledger_time_to_first_token_seconds_count", "default", "chat", "0")] == 1921
    assert ("kvledger_pool_blocks", "chat", "0", "free") not in found
    names = {key[0] for key in found}
    for absent in (
        "pool_leaked_blocks",
        "group_shared_blocks",
        "requests_waiting",
        "invariant_violations",
        "wait_seconds",
    ):
        assert not any(name.startswith(f"kvledger_{absent}") for name in names), absent
    capability = {key[3]: value for key, value in found.items() if key[:3] == ("kvledger_capability", "chat", "0")}
    known = {family.name: reported(agent.fleet.observations[0], family) for family in engine_families()}
    del known["capability"]
    assert capability == {name: float(value) for name, value in known.items()}
    assert not capability["group_shared_blocks"]
    assert capability["pool_blocks"]


def test_kinds_of_finding_that_a_page_cannot_show_are_not_zero(tmp_path: Path) -> None:
    pages = {"warm": page("lmdeploy-pytorch-idle_warm.prom"), "busy": page("vllm-0.32-busy.prom")}
    with serving({"/metrics": pages["warm"]}) as served, agent_of(tmp_path, f"a={served.url}") as agent:
        agent.sample_once()
        shown = {key[2] for key in samples(agent) if key[0] == "kvledger_findings"}

    assert FindingKind.EXCESS_REFERENCE.word not in shown
    assert FindingKind.IDLE_HOLD.word not in shown, "its usage counts what is kept for reuse"
    assert shown <= {kind.word for kind in SYMPTOM_KINDS}
    assert shown


def test_an_endpoint_that_goes_is_unknown_and_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"/metrics": page("vllm-0.32-busy.prom")}) as served, agent_of(tmp_path, f"a={served.url}") as agent:
        assert agent.sample_once().sources[0].success
        served.answers.clear()
        fleet = agent.sample_once()

        assert [source.success for source in fleet.sources] == [False, False]
        assert {source.source for source in fleet.sources} == {"a:0", "a:1"}
        for observation in fleet.observations:
            assert observation.verdict is not None
            assert observation.verdict.verdict is Verdict.UNKNOWN
            assert (observation.liveness.last_served, observation.liveness.up) == (True, None)
        monkeypatch.setattr(scrape_source, "LAST_GOOD_SECONDS", 0.0)
        assert agent.sample_once().observations == ()
        served.put("/metrics", page("vllm-0.32-busy.prom"))
        assert agent.sample_once().observations[0].liveness.up


def test_a_rank_whose_series_go_for_a_while_keeps_its_finding_and_is_unknown_meanwhile() -> None:
    """Two ranks that hold blocks and do nothing; the second is not on some pages, which are good ones otherwise."""
    now_ns = 0
    whole = page("vllm-0.32-idle_hold.prom").decode()
    first = [line for line in whole.splitlines() if 'engine="0"' in line]
    both = "\n".join([*first, *(line.replace('engine="0"', 'engine="1"') for line in first), ""])
    with serving({"/metrics": both.encode()}) as served:
        source = scrape_source.ScrapeSource(parse_endpoint(f"a={served.url}"), clock=lambda: now_ns)

        def look(text: str) -> dict[int, tuple[list[str], bool, str]]:
            served.put("/metrics", text.encode())
            observations, healths = source.look()
            assert [health.success for health in healths] == [not o.liveness.last_served for o in observations]
            return {
                o.identity.rank: (
                    [finding.kind.word for finding in o.findings or ()],
                    o.liveness.last_served,
                    health.status,
                )
                for o, health in zip(observations, healths, strict=True)
            }

        for _ in range(4):
            look(both)
            for rank in source._ranks.values():
                for since in rank.tracker._since.values():
                    since.began_ns -= 60 * 10**9
        found = ["idle_hold"], False, "idle"
        assert look(both) == {0: found, 1: found}
        alone = look("\n".join([*first, ""]))
        assert alone == {0: found, 1: (["idle_hold"], True, scrape_source.RANK_GONE)}
        now_ns += 40 * 10**9
        assert look("\n".join([*first, ""])) == {0: found}, "longer than a last page is shown"
        assert look(both) == {0: found, 1: found}


def test_a_slow_endpoint_delays_nobody(tmp_path: Path) -> None:
    with serving({"/metrics": page("vllm-0.32-busy.prom")}) as served:
        config = {"interval_seconds": 0.05, "scrape_interval_seconds": 0.05}
        with agent_of(tmp_path, f"slow={served.url}/hold", f"quick={served.url}", **config) as agent:
            agent.start()
            limit = time.monotonic() + 20
            while not (agent._fleet and any(o.identity.engine == "quick" for o in agent.fleet.observations)):
                assert time.monotonic() < limit
                time.sleep(0.01)
            first = agent.fleet.round
            while agent.fleet.round < first + 3:
                assert time.monotonic() < limit
                time.sleep(0.01)


def test_the_api_says_that_requests_and_blocks_need_a_ledger(tmp_path: Path) -> None:
    async def ask(agent: Agent) -> dict[str, tuple[int, Any]]:
        async with TestClient(TestServer(make_app(agent))) as client:
            paths = (
                "/v1/engines",
                *(f"/v1/engines/a:0/{w}" for w in ("snapshot", "findings", "scorecard", "requests", "blocks")),
            )
            answers = {}
            for path in paths:
                response = await client.get(path)
                answers[path.rpartition("/")[2]] = response.status, await response.json()
            return answers

    with serving({"/metrics": page("vllm-0.32-busy.prom")}) as served, agent_of(tmp_path, f"a={served.url}") as agent:
        agent.sample_once()
        answers = asyncio.run(ask(agent))

    assert {name: status for name, (status, _) in answers.items()} == {
        "engines": 200, "snapshot": 200, "findings": 200, "scorecard": 200, "requests": 404, "blocks": 404,
    }  # fmt: skip
    assert answers["blocks"][1]["error"]["code"] == "no_ledger"
    snapshot = answers["snapshot"][1]
    assert snapshot["source"] == "scraped"
    assert snapshot["pool"]["free_blocks"] is None
    assert snapshot["requests"]["waiting_by_reason"] == {"capacity": 7, "deferred": 2}
    assert answers["findings"][1]["judged"]


@pytest.mark.parametrize(
    "name",
    [
        "vllm-0.32-busy",
        "sglang-0.5.22-busy",
        "lmdeploy-pytorch-busy",
        "tgi-3-busy",
        "dynamo-1.6-busy",
        "llamacpp-server-busy",
    ],
)
def test_every_engine_has_a_panel(tmp_path: Path, name: str) -> None:
    with serving({"/metrics": page(f"{name}.prom")}) as served, agent_of(tmp_path, f"a={served.url}") as agent:
        agent.sample_once()
        screen = console()
        with screen.capture() as captured:
            for observation in agent.fleet.observations:
                screen.print(engine_panel(observation))
        assert agent.metrics_text()

    assert "a:0" in captured.get()
    assert "unknown" in captured.get()


def test_endpoints_come_from_flag_or_variable_and_no_two_have_one_name() -> None:
    variables = {"KVLEDGER_AGENT_SCRAPE": "a=http://x:1, http://y:2"}

    assert resolve({}, variables).scrape == ("a=http://x:1", "http://y:2")
    assert resolve({"scrape": ("http://z:3",)}, variables).scrape == ("http://z:3",)
    with pytest.raises(UsageError, match="given twice"):
        AgentConfig(directory=Path("/d"), scrape=("a=http://x:1", "a=http://y:2"))
    with pytest.raises(UsageError, match="use a URL"):
        AgentConfig(directory=Path("/d"), scrape=("x:1",))


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvledger_agent", "doctor", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


@pytest.mark.e2e
def test_doctor_says_what_is_missing_what_that_blinds_and_what_was_never_run() -> None:
    pages = {"/whole": page("vllm-0.32-busy.prom"), "/less": page("vllm-0.32-missing_families.prom")}
    with serving({**pages, "/other": page("sglang-0.5.22-busy.prom")}) as served:
        whole, less, other = (doctor(f"{served.url}{path}", "--json") for path in ("/whole", "/less", "/other"))
        table, gone = doctor(f"{served.url}/less"), doctor(f"{served.url}/nothing")

    assert (whole.returncode, less.returncode, other.returncode, gone.returncode) == (0, 1, 0, 1)
    known = {name: json.loads(ran.stdout) for name, ran in (("whole", whole), ("less", less), ("other", other))}
    assert known["less"]["missing"] == ["vllm:cache_config_info", "vllm:num_preemptions_total"]
    assert (known["whole"]["verified"], known["other"]["verified"]) == (True, False)
    rows = {row["signal"]: row for row in known["less"]["capabilities"]}
    assert not rows["capacity_blocks"]["reported"]
    assert rows["capacity_blocks"]["blind"]
    assert rows["capacity_blocks"]["remedy"]
    assert "MISSING" in table.stdout
    assert "unverified" not in table.stdout
    assert "404" in gone.stderr
    assert "Traceback" not in gone.stderr
