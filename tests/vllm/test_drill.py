"""`kvledger drill` against a real vLLM server: by its own page, and by the agent that reads the plugin's ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvledger_agent.drill.levels import PageLevels
from kvledger_agent.drill.plan import DrillPlan
from kvledger_agent.drill.report import DrillReport
from kvledger_agent.drill.runner import drill
from tests.vllm.server import MODEL, VllmServer, vllm_server

PLAN = DrillPlan(clients=4, prompt_tokens=96, max_tokens=1024, patience_seconds=240.0, give_up_seconds=5.0, model=MODEL)


@pytest.fixture(scope="module")
def server(tiny_model: Path, ledger_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    limits = ("--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "512")
    with vllm_server(tiny_model, ledger_directory, log, arguments=limits) as running:
        yield running


def drilled(server: VllmServer) -> DrillReport:
    said: list[str] = []
    return asyncio.run(drill(PLAN, url=server.url, levels=PageLevels(server.url), say=said.append))


def test_the_pool_of_a_sound_vllm_comes_back_after_every_phase_as_its_own_page_shows(server: VllmServer) -> None:
    report = drilled(server)
    assert report.exit_code == 0, report
    assert [phase.name for phase in report.phases] == ["cancel", "timeout", "reconnect storm"]
    cancel = report.phases[0]
    assert cancel.held == 4
    assert cancel.highest_blocks is not None
    assert cancel.highest_blocks >= 4 * 3, "ninety-six tokens take three blocks of thirty-two"
    assert all(phase.after_blocks == 0 for phase in report.phases)
