"""An engine over two machines, started with the flags and names of docs/fleet.md, on loopback, with a rank on each."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bench.health import await_health
from kvledger.segment import SUFFIX
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.observation import LEDGER, Observation
from tests.vllm.load import Load, client
from tests.vllm.server import MODEL, START_SECONDS, environment_with, free_port

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy" / "fleet" / "vllm"
HALVED = {"--data-parallel-size": "2", "--data-parallel-size-local": "1", "--data-parallel-start-rank": "1"}
SMALL = ("--enforce-eager", "--block-size", "32", "--num-gpu-blocks-override", "65", "--max-model-len", "2048")
STOP_SECONDS = 30.0
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n"


def serve(script: str, model: Path, rpc_port: int) -> list[str]:
    """What a script starts vLLM with, its command line run from the module."""
    _, _, said = (SCRIPTS / script).read_text().replace("\\\n", " ").partition("exec vllm serve your/model")
    words = shlex.split(said)
    assert {"--data-parallel-size", "--data-parallel-address", "--data-parallel-rpc-port"} <= {*words}
    for at, name in enumerate(words[:-1]):
        if name in HALVED:
            words[at + 1] = HALVED[name]
        elif name == "--data-parallel-rpc-port":
            words[at + 1] = str(rpc_port)
        elif name == "--data-parallel-address":
            words[at + 1] = "127.0.0.1"
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *words, *SMALL]


def started(script: str, command: list[str], directory: Path, place: Path) -> subprocess.Popen[bytes]:
    """The process of one machine, with the script's own variables but for where its ledgers lie."""
    exported = dict(re.findall(r"^export (KVLEDGER_\w+)=(\S+)", (SCRIPTS / script).read_text(), re.M))
    assert set(exported) == {"KVLEDGER_DIR", "KVLEDGER_ENGINE"}
    paths = [place, ROOT / "engine", ROOT / "agent", ROOT]
    environment = exported | {"KVLEDGER_DIR": str(directory), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    with (place / f"{script}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment_with(environment), stdout=log, stderr=log)


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """All are asked at once: neither waits for what the other has to say."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def seen_by(agent: Agent) -> Observation:
    (observation,) = agent.sample_once().observations
    return observation


@pytest.fixture
def machines() -> Iterator[dict[str, Path]]:
    """A directory for ledgers on each."""
    made = {s: Path(tempfile.mkdtemp(prefix="kvledger-machine-", dir="/dev/shm")) for s in ("head.sh", "worker.sh")}
    yield made
    for directory in made.values():
        shutil.rmtree(directory)


def test_each_machine_has_the_ledger_of_its_own_rank_and_together_they_are_the_engine(
    tiny_model: Path, machines: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "vllm-0.32.0.dist-info").mkdir()
    (tmp_path / "vllm-0.32.0.dist-info" / "METADATA").write_text(METADATA)  # its command line asks for it
    rpc_port, port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    answers = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL, "--api-server-count", "1"]
    with ExitStack() as stack:
        processes = list[subprocess.Popen[bytes]]()
        stack.callback(stop, processes)
        for script, directory in machines.items():
            command = serve(script, tiny_model, rpc_port) + (answers if script == "head.sh" else [])
            processes.append(started(script, command, directory, tmp_path))
        log = tmp_path / "head.sh.log"
        assert await_health(url, processes[0], within_seconds=START_SECONDS), log.read_text()[-4000:]
        agents = [stack.enter_context(closing(Agent(AgentConfig(directory=d)))) for d in machines.values()]

        async def send() -> int:
            async with client(url) as api:
                load = Load(api, random.Random(7))
                await asyncio.gather(*(load.shares() for _ in range(24)))
                return load.outcomes["shared"]

        assert asyncio.run(send()) == 24
        deadline = time.monotonic() + 60
        while not all(seen_by(agent).liveness.idle for agent in agents):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        found = [seen_by(agent) for agent in agents]
        assert [(o.identity.key, o.source) for o in found] == [("chat:0", LEDGER), ("chat:1", LEDGER)]
        tokens = [sum(o.totals.counters["generation_tokens_total"].values()) for o in found]
        assert (min(tokens) > 0, sum(tokens)) == (True, 24 * 40)
    assert [len(list(directory.glob(f"*{SUFFIX}"))) for directory in machines.values()] == [1, 1]
