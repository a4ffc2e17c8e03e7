"""Defects put into a live vLLM at random moments: the agent names each, with exactly the blocks that it spoiled."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from kvledger.words import FindingKind
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.finding import Finding
from tests.vllm.conductor import Conductor
from tests.vllm.defects import DOUBLE_FREE, LOST_DECREF, SKIPPED_FREE
from tests.vllm.load import client, prompt
from tests.vllm.seen import observation_of
from tests.vllm.server import MODEL, VllmServer, vllm_server

TIMES, SEED, MOST_SECONDS = 10, 5, 200.0
LIMITS = ("--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "512")


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, ledger_directory: Path, tmp_path_factory: pytest.TempPathFactory, conductor: Conductor
) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    with vllm_server(
        tiny_model, ledger_directory, log, blocks=1025, arguments=LIMITS, environment=conductor.environment
    ) as running:
        yield running


class Saboteur(threading.Thread):
    """Injects a defect of each kind in turn at random publications, and collects which blocks each one spoiled."""

    def __init__(self, conductor: Conductor, agent: Agent, kinds: tuple[str, ...]) -> None:
        super().__init__(name="saboteur", daemon=True)
        self._conductor, self._agent = conductor, agent
        self._source = random.Random(SEED)
        self._left = [kind for kind in kinds for _ in range(TIMES)]
        self._pending = 0
        self.done: list[dict[str, Any]] = []
        self.named: list[tuple[dict[str, Any], list[Finding]]] = []
        """Double frees, and what the agent found of each while the engine was held."""
        self.error: BaseException | None = None
        self.finished = threading.Event()

    def run(self) -> None:
        """Until all have happened; then the engine is free."""
        self._source.shuffle(self._left)
        try:
            self._conductor.tell(hold=True)
            while self._left or self._pending:
                self._step(self._conductor.held())
            self._conductor.held()
            self._conductor.tell(go=10**9)
        except BaseException as error:  # noqa: BLE001  the test shows it
            self.error = error
        finally:
            self.finished.set()

    def _step(self, held: dict[str, Any]) -> None:
        self._collect(held)
        if self._pending or not self._left:
            self._conductor.tell(go=1)
            return
        if self._left[0] == DOUBLE_FREE:
            if not held["active"]:
                self._conductor.tell(go=1)
                return
            self._double_free()
        else:
            self._pending += 1
            self._conductor.tell(inject=self._left.pop(0), seed=self._source.randrange(1 << 30), go=10**6)
            # The engine stops by itself when an armed defect has happened.
            return
        self._conductor.tell(go=1 + self._source.randrange(40))

    def _collect(self, held: dict[str, Any]) -> None:
        for defect in held["done"]:
            self.done.append(defect)
            self._pending -= defect["kind"] != DOUBLE_FREE

    def _double_free(self) -> None:
        """Free, publish, look, mend, publish: vLLM would end when it handed the block out again."""
        self._left.pop(0)
        before = {id_of(finding) for finding in observation_of(self._agent).findings or ()}
        self._conductor.tell(inject=DOUBLE_FREE, seed=self._source.randrange(1 << 30), publish=True)
        done = self._conductor.held()["done"]
        if not done:
            self._left.append(DOUBLE_FREE)
            return
        (defect,) = done
        found = [f for f in observation_of(self._agent).findings or () if id_of(f) not in before]
        self.named.append((defect, found))
        self._conductor.tell(repair=defect["blocks"], publish=True)
        self._conductor.held()


def id_of(finding: Finding) -> tuple[Any, ...]:
    return finding.kind, finding.blocks, finding.found_clock_ns


def blocks_of(findings: list[Finding]) -> set[int]:
    """Blocks in vLLM's numbers, of findings that list all of theirs."""
    assert all(finding.block_count == len(finding.blocks) for finding in findings)
    return {block + 1 for finding in findings for block in finding.blocks}


def test_every_defect_in_vllm_is_named_with_exactly_its_blocks(
    server: VllmServer, conductor: Conductor, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(AgentConfig(directory=server.directory))
    saboteur = Saboteur(conductor, agent, (SKIPPED_FREE, LOST_DECREF, DOUBLE_FREE))
    saboteur.start()
    asyncio.run(drive(server.url, saboteur))
    saboteur.join(60)
    assert saboteur.error is None, saboteur.error
    leaked = {
        kind: {block for defect in saboteur.done if defect["kind"] == kind for block in defect["blocks"]}
        for kind in (SKIPPED_FREE, LOST_DECREF)
    }
    spoiled = leaked[SKIPPED_FREE] | leaked[LOST_DECREF]
    excess = await_findings(agent, spoiled)
    agent.close()
    with capsys.disabled():
        print(f"\n{len(saboteur.done)} leaks of {len(spoiled)} blocks, {len(saboteur.named)} double frees")
    for kind in leaked:
        assert sum(defect["kind"] == kind for defect in saboteur.done) == TIMES
    assert blocks_of(excess) == spoiled
    assert len(saboteur.named) == TIMES
    for defect, found in saboteur.named:
        double = [f for f in found if f.kind is not FindingKind.EXCESS_REFERENCE]
        assert FindingKind.MISSING_REFERENCE in {finding.kind for finding in double}, (defect, found)
        assert {f.kind for f in double} <= {FindingKind.MISSING_REFERENCE, FindingKind.DOUBLE_LISTED}
        assert blocks_of(double) == set(defect["blocks"])


def await_findings(agent: Agent, spoiled: set[int]) -> list[Finding]:
    """Excess references, once there are as many as leaked blocks, or the time for a finding has passed twice over."""
    deadline = time.monotonic() + 30
    while True:
        findings = [f for f in observation_of(agent).findings or () if f.kind is FindingKind.EXCESS_REFERENCE]
        if len(blocks_of(findings)) >= len(spoiled) or time.monotonic() > deadline:
            return findings
        time.sleep(0.2)


async def drive(url: str, saboteur: Saboteur) -> None:
    """Requests of whose kinds every defect needs one: clients that go away, and four answers that share a prompt."""
    deadline = time.monotonic() + MOST_SECONDS
    async with client(url) as api:
        await asyncio.gather(*(one_client(api, random.Random(n), saboteur, deadline) for n in range(6)))


async def one_client(api: openai.AsyncOpenAI, source: random.Random, saboteur: Saboteur, deadline: float) -> None:
    while not saboteur.finished.is_set() and time.monotonic() < deadline:
        if source.random() < 0.5:
            stream = await api.completions.create(
                model=MODEL,
                prompt=prompt(source, source.randrange(40, 300)),
                max_tokens=200,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async for _ in stream:
                if source.random() < 0.2:
                    break
            await stream.close()
        else:
            await api.completions.create(
                model=MODEL, prompt=prompt(source, 120), max_tokens=20, n=4, extra_body={"ignore_eos": True}
            )
