"""Whatever happens to the instrument in a live server, the server goes on, says so once, and the agent shows why."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import openai
import pytest

from kvledger.segment import SUFFIX
from kvledger.words import Verdict
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.observation import VerdictView
from tests.children import memory_directory
from tests.ledger.toy import toy_limits
from tests.vllm.conductor import Conductor
from tests.vllm.seen import await_idle, observation_of
from tests.vllm.server import MODEL, VllmServer, vllm_server

SWITCHED_OFF = "the instrument switched itself off, vLLM goes on"
LIMITS = ("--max-model-len", "1024", "--max-num-seqs", "8")


def serves(server: VllmServer, times: int = 3) -> None:
    """The server answers."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as api:
        for number in range(times):
            answer = api.completions.create(
                model=MODEL, prompt=[3 + number] * 40, max_tokens=5, extra_body={"ignore_eos": True}
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 5


def said(server: VllmServer) -> list[str]:
    """Lines of the log in which the instrument gives up."""
    return [line for line in server.log.read_text(errors="replace").splitlines() if SWITCHED_OFF in line]


def verdict_of(agent: Agent) -> VerdictView:
    """What a fresh look concludes."""
    verdict = observation_of(agent).verdict
    assert verdict is not None
    return verdict


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as directory:
        yield directory


def test_an_error_in_a_hook_switches_the_instrument_off_and_the_agent_says_why(
    tiny_model: Path, directory: Path, tmp_path: Path
) -> None:
    with (
        closing(Conductor()) as conductor,
        vllm_server(
            tiny_model, directory, tmp_path / "log", arguments=LIMITS, environment=conductor.environment
        ) as server,
        closing(Agent(AgentConfig(directory=directory))) as agent,
    ):
        serves(server)
        await_idle(agent)
        assert verdict_of(agent).verdict is Verdict.HEALTHY
        conductor.tell(hold=True)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(serves, server)
            conductor.held()
            conductor.tell(**{"raise": "planted by a test"})
            asked.result()
        verdict = verdict_of(agent)

        assert verdict.verdict is Verdict.UNKNOWN
        assert "instrument failed: Planted: planted by a test" in verdict.evidence
        serves(server)
        assert len(said(server)) == 1
        assert not observation_of(agent).findings


@contextmanager
def another_writer(directory: Path) -> Iterator[None]:
    """A process that writes a ledger of the name and rank that the server wants, too."""
    command = [sys.executable, "-m", "tests.agent.children", "hold", str(directory), "vllm", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield
        child.stdin.close()
        assert child.wait(30) == 0


def test_a_second_writer_of_the_same_name_gets_no_ledger_and_harms_neither(
    tiny_model: Path, directory: Path, tmp_path: Path
) -> None:
    with (
        another_writer(directory),
        vllm_server(tiny_model, directory, tmp_path / "log", arguments=LIMITS) as server,
        closing(Agent(AgentConfig(directory=directory))) as agent,
    ):
        serves(server)
        seen = observation_of(agent)

        assert len(said(server)) == 1
        assert "AlreadyWritten" in said(server)[0]
        assert len(list(directory.glob(f"*{SUFFIX}"))) == 1
        assert seen.pool is not None
        assert seen.pool.capacity_blocks == toy_limits().capacity_blocks, "the agent shows the other writer's ledger"


@contextmanager
def small_tmpfs(kibibytes: int) -> Iterator[Path]:
    """A tmpfs with room for little. Skips where none may be mounted."""
    place = Path(tempfile.mkdtemp(prefix="kvledger-full-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k,mode=700", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        if not mounted:
            pytest.skip("no tmpfs can be mounted here: a full one is tested where that is allowed")
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


def test_without_room_for_a_ledger_vllm_serves_and_says_so_once(tiny_model: Path, tmp_path: Path) -> None:
    with (
        small_tmpfs(64) as full,
        vllm_server(tiny_model, full, tmp_path / "log", arguments=LIMITS) as server,
        closing(Agent(AgentConfig(directory=full))) as agent,
    ):
        serves(server)

        assert len(said(server)) == 1
        assert "NoSpace" in said(server)[0]
        assert not list(full.glob(f"*{SUFFIX}"))
        assert agent.sample_once().observations == ()
