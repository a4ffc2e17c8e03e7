"""The agent as a whole: sampling by hand and by its thread, staleness, and questions to the thread that reads."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from kvledger_agent.agent import Agent, NoSuchEngine, Stale
from kvledger_agent.config import AgentConfig
from kvledger_agent.fleet import Fleet
from kvledger_agent.ledger_source import LedgerSource
from tests.children import Spawn


def quick(directory: Path) -> AgentConfig:
    return AgentConfig(directory=directory, interval_seconds=0.05, stale_after_seconds=0.3)


def await_round(agent: Agent, number: int) -> Fleet:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if agent.fleet.round >= number:
                return agent.fleet
        except Stale:
            pass
        time.sleep(0.01)
    raise AssertionError(f"round {number} did not come")


def test_before_the_first_sample_there_is_nothing_to_show(tmp_path: Path) -> None:
    with closing(Agent(AgentConfig(directory=tmp_path))) as agent:
        with pytest.raises(Stale):
            agent.metrics_text()

        agent.sample_once()

        assert "kvledger_build_info" in agent.metrics_text()


def test_an_old_sample_is_refused_and_never_looks_fresh(tmp_path: Path) -> None:
    with closing(Agent(quick(tmp_path))) as agent:
        agent.sample_once()
        assert agent.metrics_text()

        while agent.fleet.age_seconds(time.monotonic_ns()) <= agent.config.stale_after_seconds:
            time.sleep(0.01)

        with pytest.raises(Stale, match="old"):
            agent.metrics_text()
        assert agent.fleet.round == 1, "the round itself is still there for whoever asks for it as such"


def test_the_thread_goes_on_sampling_until_it_is_stopped(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    agent = Agent(quick(tmp_path))
    agent.start()
    await_round(agent, 3)
    agent.stop()

    assert set(threading.enumerate()) <= before
    agent.stop()


@pytest.mark.needs("tmpfs")
def test_questions_are_answered_by_the_thread_that_reads_ledgers(memory: Path, spawn: Spawn) -> None:
    spawn("tests.agent.children", "hold", memory, "a", 0)
    agent = Agent(AgentConfig(directory=memory))
    agent.start()
    with closing(agent):
        await_round(agent, 1)

        def who(source: LedgerSource) -> tuple[str, str]:
            return threading.current_thread().name, source.identity.key

        assert agent.ask("a:0", who).result(2) == ("kvledger-sampler", "a:0")
        with pytest.raises(NoSuchEngine, match="b:0"):
            agent.ask("b:0", who).result(2)


def test_a_question_that_fails_fails_for_whoever_asked_and_nobody_else(tmp_path: Path) -> None:
    agent = Agent(quick(tmp_path))
    agent.start()
    with closing(agent):
        with pytest.raises(NoSuchEngine):
            agent.ask("x:0", lambda source: 1 / 0).result(2)
        before = agent.fleet.round
        await_round(agent, before + 2)
