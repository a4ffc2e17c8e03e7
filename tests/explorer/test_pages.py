"""Every page beside a real agent and real engines under load, and what each says when one of them is in trouble."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kvledger_agent.agent import Agent
from kvledger_agent.client import AgentClient, AgentStale
from kvledger_agent.config import AgentConfig
from kvledger_agent.http import make_app
from kvledger_dashboards.explorer.views.requests import waited_by_cause
from kvledger_dashboards.explorer.views.text import spaced
from tests.explorer.conftest import agent, engine, until
from tests.explorer.pages import PAGES, figure, legend, opened, text

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs("tmpfs"), pytest.mark.needs("streamlit")]
PointAt = Callable[[AgentClient], None]


def test_the_overview_has_the_gravest_engine_first_with_action_and_evidence(
    fleet: AgentClient, point_at: PointAt
) -> None:
    point_at(fleet)
    app = opened("overview")
    assert [title.value.replace("\\", "") for title in app.subheader] == ["leaking:0", "pressed:0"]
    said = text(app)
    assert "**Fix the leak:** excess_reference on" in said
    assert "To do: save a snapshot, take the engine out of traffic and restart it" in said
    # Too small a pool and too few slots, now the one, now the other.
    assert re.search(r"\*\*[A-Z][a-z ]+:\*\* \d+ % of request time is waiting (for|behind) ", said), said


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ({"engine": ["pressed:0"]}, "pressed:0"),
        ({"var-engine": ["gone", "pressed", "leaking"]}, "pressed:0"),
        ({"var-engine": ["$__all"]}, "leaking:0"),
    ],
)
def test_a_boards_link_opens_the_engine_that_it_names(
    fleet: AgentClient, point_at: PointAt, address: dict[str, list[str]], shown: str
) -> None:
    point_at(fleet)
    assert opened("overview", address=address).selectbox[0].value == shown


def test_the_overviews_pool_bar_adds_up_and_has_its_watermark(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    blocks = legend(opened("overview"))
    assert blocks["active"] + blocks["cached"] + blocks["free"] == 1600
    assert blocks["alert watermark"] == 1440
    assert blocks["logical"] > 0


def test_the_overview_says_who_waits_for_what_and_what_was_refused(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    said = text(opened("overview"))
    assert "context too long" in said
    assert re.search("Waiting for: (pool|batch slots|preemption) [0-9]", said)
    assert "The oldest wait:" in said


def test_the_overviews_sparkline_grows_with_the_session(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    app = opened("overview")
    first = app.session_state["history pressed:0"].of("active")
    until(lambda: len(app.run().session_state["history pressed:0"].of("active")) > len(first) + 1, "two more samples")
    assert list(app.metric[0].proto.chart_data)


@pytest.mark.parametrize("name", ["pressed", "leaking"])
def test_the_map_has_one_cell_per_block_and_its_legend_counts_them(
    fleet: AgentClient, point_at: PointAt, name: str
) -> None:
    point_at(fleet)
    app = opened("block_map", f"{name}:0")
    blocks = legend(app)
    assert sum(blocks.values()) == 1600
    assert blocks["active, shared"] > 0
    assert (blocks["leaked"] > 0) == (name == "leaking")
    cells = figure(app)["data"][0]["z"]
    assert cells["dtype"] == "u1"
    assert eval(f"[{cells['shape']}]") == [25, 64]


def test_a_block_that_leaked_can_be_looked_up(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    leak = next(f for f in fleet.snapshot("leaking")["findings"] if f["blocks"])
    app = opened("block_map", "leaking:0")
    app.number_input(key="block").set_value(leak["blocks"][0]).run()
    facts = {metric.label: metric.value for metric in app.metric}
    assert facts["State"] == "active"
    assert facts["Of live tables"] < facts["References"]
    app.number_input(key="block").set_value(99_999).run()
    assert "there is no block 99999" in text(app)


def test_requests_are_listed_with_blocks_waits_tenant_and_age(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    app = opened("requests", "pressed:0")
    table = app.dataframe[0].value
    assert {"serial", "request", "tenant", "state", "waits for", "blocks", "shared", "age"} <= set(table.columns)
    assert table["shared"].max() > 0
    assert "running" in set(table["state"])
    assert (
        int(next(metric.value for metric in app.metric if metric.label == "Logical blocks").replace(",", ""))
        == table["blocks"].sum()
    )


def test_requests_have_waited_for_pool_preemption_and_batch_slots(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    wanted = {"pool", "preemption", "batch slots"}
    until(lambda: {name for name, seconds in waited(fleet).items() if seconds >= 1} >= wanted, "waits for each of them")
    bars = {trace["name"]: trace["x"] for trace in figure(opened("requests", "pressed:0"))["data"]}
    assert {name for name, seconds in bars.items() if max(seconds) > 0} >= wanted


def waited(client: AgentClient) -> dict[str, float]:
    """Seconds that the pressed engine's live requests have waited, by cause as the page says it."""
    return {spaced(cause): s for cause, s in waited_by_cause(client.requests("pressed:0")["requests"]).items()}


def test_where_the_last_minutes_time_went_is_told_for_all_by_tenant_and_by_class(
    fleet: AgentClient, point_at: PointAt
) -> None:
    point_at(fleet)
    until(lambda: any(row["whole"] for row in fleet.waits("pressed:0", window_seconds=60)["rows"]), "an ended request")
    app = opened("requests", "pressed:0")
    table = app.dataframe[-1].value
    assert {"all", "tenant acme"} < set(table["who"])
    assert any(who.startswith("class ") for who in table["who"])
    assert set(table["what"]) == {"first token", "whole"}
    assert (table["P50"] <= table["P95"]).all()
    assert (table["P95"] <= table["P99"]).all()
    assert "decode" in "".join(table["mean is made of"])
    assert re.search(r"Waiting now for [a-z ]+: \d+, the oldest |Nobody waits now", text(app))


def test_requests_can_be_narrowed_to_a_tenant(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    app = opened("requests", "pressed:0")
    app.multiselect(key="tenants").select("acme").run()
    assert set(app.dataframe[0].value["tenant"]) == {"acme"}


def test_a_leak_is_shown_with_blocks_bytes_age_and_its_owner(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    app = opened("leaks", "leaking:0")
    facts = {metric.label: metric.value for metric in app.metric}
    assert app.subheader[0].value == "Excess reference"
    assert int(facts["Blocks"]) > 0
    assert facts["Memory"].split()[1] in ("B", "KiB", "MiB") or facts["Memory"] == "unknown"
    assert facts["Since"].endswith("ago")
    assert app.dataframe[0].value["request"].str.startswith("chat-").all()
    assert not app.success


def test_without_a_finding_the_leaks_page_says_what_was_checked(fleet: AgentClient, point_at: PointAt) -> None:
    point_at(fleet)
    app = opened("leaks", "pressed:0")
    assert "**No finding.**" in text(app)
    assert "1,600 blocks at publication" in text(app)
    assert "a contradiction becomes a finding when it lasts longer than" in text(app)


@pytest.mark.parametrize("page", PAGES)
def test_without_an_agent_every_page_says_so_and_how_to_start_one(
    page: str, point_at: PointAt, free_address: str
) -> None:
    point_at(AgentClient(free_address))
    app = opened(page)
    assert "The agent does not answer." in app.error[0].value
    assert "kvledger agent" in app.code[0].value
    assert not app.metric


@pytest.mark.parametrize("page", PAGES)
def test_without_an_engine_every_page_says_so(page: str, memory: Path, point_at: PointAt) -> None:
    with agent(memory) as client:
        point_at(client)
        app = opened(page)
    assert "No engine yet." in app.info[0].value
    assert not app.metric


def test_an_engine_that_appears_is_offered_without_a_new_page(memory: Path, point_at: PointAt) -> None:
    with agent(memory) as client:
        point_at(client)
        app = opened("overview")
        with engine("pressed", memory):
            until(lambda: client.engines()["engines"], "the engine")
            assert list(app.run().selectbox[0].options) == ["pressed:0"]


@pytest.mark.parametrize("page", PAGES)
def test_a_stale_agents_numbers_are_not_shown(page: str, memory: Path, point_at: PointAt) -> None:
    with sleeping_agent(memory) as client:
        point_at(client)
        app = opened(page)
    assert "The agent is stale." in app.warning[0].value
    assert not app.metric


@pytest.mark.parametrize("page", PAGES)
def test_a_killed_engines_last_state_is_shown_as_that(page: str, memory: Path, point_at: PointAt) -> None:
    with agent(memory) as client:
        with engine("pressed", memory):
            until(lambda: client.engines()["engines"], "the engine")
        until(lambda: client.snapshot("pressed")["liveness"]["status"] == "dead", "its death")
        point_at(client)
        app = opened(page)
    assert any("The engine is dead" in warning.value for warning in app.warning)


def test_a_stopped_engine_is_frozen_on_every_page(memory: Path, point_at: PointAt) -> None:
    with agent(memory) as client, engine("pressed", memory) as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: client.snapshot("pressed")["liveness"]["status"] == "frozen", "its freezing")
        point_at(client)
        for page in PAGES:
            assert any("is frozen" in warning.value for warning in opened(page).warning), page


def test_a_file_that_is_no_ledger_is_shown_with_the_reason(memory: Path, point_at: PointAt) -> None:
    (memory / "bad.0.00000001.kvledger").write_bytes(bytes(9000))
    with agent(memory) as client:
        point_at(client)
        assert "KVLEDGER" in text(opened("overview"))
        assert "no ledger of this agent can be read" in text(opened("leaks"))


@contextmanager
def sleeping_agent(directory: Path) -> Iterator[AgentClient]:
    """A real agent over HTTP whose sampling thread has ended: it answers, and its last sample only gets older."""
    sampler = Agent(AgentConfig(directory=directory, interval_seconds=0.05, stale_after_seconds=0.2))
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    runner = web.AppRunner(make_app(sampler))

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        client = AgentClient(f"http://127.0.0.1:{port}")
        sampler.start()
        until(lambda: client.get("/readyz"), "a first sample")
        sampler.stop()
        until(lambda: is_stale(client), "the sample's old age")
        yield client
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        serving.join()
        loop.close()
        sampler.close()


def is_stale(client: AgentClient) -> bool:
    """Whether the agent refuses to show its last sample."""
    try:
        client.engines()
    except AgentStale:
        return True
    return False
