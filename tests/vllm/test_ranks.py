"""A real server with two data-parallel engine cores: a ledger each, which says what the page says of that engine."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.observation import LEDGER
from tests.vllm.load import Load, client
from tests.vllm.server import vllm_server

ARGUMENTS = (
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "8",
    "--max-num-batched-tokens",
    "512",
    "--data-parallel-size",
    "2",
)
COUNTERS = {
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
    "prefix_hit_tokens_total": "vllm:prefix_cache_hits_total",
    "prefix_queried_tokens_total": "vllm:prefix_cache_queries_total",
    "preemptions_total": "vllm:num_preemptions_total",
}


def on_the_page(url: str) -> dict[tuple[str, int], float]:
    """vLLM's own counters, by name and engine."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, int(sample.labels["engine"])): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in COUNTERS.values()
    }


async def send(url: str) -> None:
    """Requests that end, since clients that go away are in none of vLLM's own counters."""
    async with client(url) as api:
        load = Load(api, random.Random(7))
        for _ in range(3):
            await asyncio.gather(*(load.shares() for _ in range(8)), *(load.completes(200) for _ in range(8)))


def test_two_ranks_of_one_server_have_a_ledger_each_that_agrees_with_its_engines_page(
    tiny_model: Path, ledger_directory: Path, tmp_path: Path
) -> None:
    with (
        vllm_server(tiny_model, ledger_directory, tmp_path / "log", blocks=65, arguments=ARGUMENTS) as server,
        closing(Agent(AgentConfig(directory=server.directory, scrape=(f"vllm={server.url}",)))) as agent,
    ):
        asyncio.run(send(server.url))
        deadline = time.monotonic() + 60
        while not all(o.liveness.idle for o in agent.sample_once().observations):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        page, seen = on_the_page(server.url), agent.sample_once().observations
        names = sorted(path.name for path in server.directory.glob("*.kvledger"))
        assert names == ["vllm.0.00000001.kvledger", "vllm.1.00000001.kvledger"]
        assert [(o.identity.key, o.source) for o in seen] == [("vllm:0", LEDGER), ("vllm:1", LEDGER)]
        for observation in seen:
            rank = observation.identity.rank
            counted = {name: sum(observation.totals.counters[name].values()) for name in COUNTERS}
            assert counted == {name: page[own, rank] for name, own in COUNTERS.items()}
            assert counted["generation_tokens_total"] > 0, "one of the ranks did nothing"
            assert not observation.findings
            assert observation.pool is not None
            assert observation.pool.active_blocks == 0
