"""The explorer beside `kvledger engine` with its server, `kvledger agent` and `kvledger load`: what people run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.explorer.conftest import agent, child, until
from tests.explorer.pages import legend, opened, text
from tests.explorer.test_pages import PointAt

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    *(pytest.mark.needs(name) for name in ("distribution", "tmpfs", "streamlit")),
]
ENGINE = ("engine", "--model", "cell", "--port", 0, "--json", "--step-time", "base=15ms", "--fault", "skipped_free")
LOAD = ("load", "--profile", "storm", "--for", 4, "--drain", 5, "--json")


def test_the_leak_of_an_engine_behind_its_server_is_found_on_every_page(memory: Path, point_at: PointAt) -> None:
    with (
        child("kvledger_agent", *ENGINE, "--directory", memory) as (process, line),
        agent(memory) as client,
    ):
        with child("kvledger_agent", *LOAD, "--url", json.loads(line)["url"]):
            until(lambda: client.snapshot("engine")["findings"], "the leak")
        point_at(client)
        leaked = client.snapshot("engine")["leaked_blocks"]
        assert leaked > 0
        assert f"**Fix the leak:** excess_reference on {leaked} block" in text(opened("overview"))
        assert legend(opened("block_map", "engine:0"))["leaked"] == leaked
        leaks = opened("leaks", "engine:0")
        assert leaks.subheader[0].value == "Excess reference"
        assert sum(int(metric.value) for metric in leaks.metric if metric.label == "Blocks") == leaked
        process.terminate()
        process.wait(20)
