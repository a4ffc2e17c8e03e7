"""Engines and agents that stop, hang and are killed: what the pages show meanwhile, and that nothing goes back."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvledger import catalog
from kvledger.families.family import Kind, Scope
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.observation import Observation
from tests.children import Spawn

pytestmark = pytest.mark.needs("tmpfs")
CHILDREN = "tests.agent.children"
ENGINE_COUNTERS = {f.exposed_name for f in catalog.FAMILIES if f.kind is Kind.COUNTER and f.scope is not Scope.AGENT}
Counters = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def counters(agent: Agent) -> Counters:
    """Every engine counter and every histogram bucket, count and sum of a fresh sample."""
    agent.sample_once()
    found: Counters = {}
    for family in text_string_to_metric_families(agent.metrics_text()):
        for sample in family.samples:
            if sample.name in ENGINE_COUNTERS or family.type == "histogram":
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def assert_grown(before: Counters, after: Counters) -> None:
    back = {key: (value, after.get(key)) for key, value in before.items() if after.get(key, -1.0) < value}
    assert not back


def until(agent: Agent, holds: Callable[[Observation], bool], seconds: float = 8.0) -> Observation:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        observations = agent.sample_once().observations
        if observations and holds(observations[0]):
            return observations[0]
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {observations}")


def stop_at_work(engine: subprocess.Popen[str], agent: Agent) -> None:
    """Stop a process, but not in the moment between two requests, when nothing is due from it."""
    process = psutil.Process(engine.pid)
    while True:
        engine.send_signal(signal.SIGSTOP)
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        if agent.sample_once().observations[0].liveness.status != "idle":
            return
        engine.send_signal(signal.SIGCONT)


def steps(observation: Observation) -> float:
    return observation.totals.counters["engine_steps_total"][()]


def steps_above(least: float) -> Callable[[Observation], bool]:
    return lambda observation: steps(observation) > least


def test_no_counter_goes_back_over_restarts_of_agent_and_engine(memory: Path, spawn: Spawn) -> None:
    seen: Counters = {}
    for start in range(3):
        engine = spawn(CHILDREN, "work", memory)
        for _ in range(2):
            with closing(Agent(AgentConfig(directory=memory))) as agent:
                until(agent, steps_above(20 * (start + 1)))
                now = counters(agent)
            assert_grown(seen, now)
            seen = now
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        with closing(Agent(AgentConfig(directory=memory))) as agent:
            dead = counters(agent)
        assert_grown(seen, dead)
        seen = dead

    assert seen["kvledger_engine_restarts_total", (("engine", "work"), ("model", "cell"), ("rank", "0"))] == 2


def test_a_clean_stop_leaves_a_closed_ledger_without_a_finding(memory: Path, spawn: Spawn) -> None:
    engine = spawn(CHILDREN, "work", memory)
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        until(agent, steps_above(20))
        engine.communicate(timeout=20)

        observation = until(agent, lambda o: o.liveness.status == "closed")

    assert observation.liveness.up is False
    assert observation.findings == ()
    assert observation.pool is not None
    assert observation.pool.active_blocks == 0


def test_a_killed_engine_is_dead_within_a_sample_and_its_last_state_stays(memory: Path, spawn: Spawn) -> None:
    engine = spawn(CHILDREN, "work", memory)
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        before = until(agent, steps_above(20))
        engine.send_signal(signal.SIGKILL)
        engine.wait()

        observation = agent.sample_once().observations[0]
        page = agent.metrics_text()

    assert (observation.liveness.status, observation.liveness.up) == ("dead", False)
    assert observation.findings == ()
    assert steps(observation) >= steps(before)
    assert 'kvledger_engine_up{engine="work",model="cell",rank="0"} 0.0' in page
    assert 'kvledger_engine_closed{engine="work",model="cell",rank="0"} 0.0' in page


def test_a_stopped_engine_is_frozen_and_not_leaking_and_well_again_when_it_goes_on(memory: Path, spawn: Spawn) -> None:
    engine = spawn(CHILDREN, "work", memory)
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        until(agent, steps_above(20))
        stop_at_work(engine, agent)
        frozen = until(agent, lambda o: o.liveness.status == "frozen")
        assert frozen.findings == ()
        assert frozen.verdict is not None
        assert frozen.verdict.verdict.word == "frozen"
        assert frozen.liveness.up
        engine.send_signal(signal.SIGCONT)

        well = until(agent, lambda o: o.liveness.status == "ok" and steps(o) > steps(frozen) + 20)

    assert well.findings == ()
    assert well.undecided == 0


def test_a_step_that_never_ends_is_frozen(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "crawl", memory)
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        observation = until(agent, lambda o: o.liveness.status == "frozen")

    assert observation.requests is not None
    assert observation.requests.oldest_wait_seconds is not None
    assert observation.requests.oldest_wait_seconds["step", "acme"] > 3.0, "its wait goes on while it hangs"


def test_an_idle_engine_stays_idle_and_up_however_long_it_runs_no_code(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "hold", memory, "a", 0)
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        seen = []

        def is_old(observation: Observation) -> bool:
            seen.append(observation.liveness)
            return (observation.liveness.heartbeat_age_seconds or 0) > 3.0

        until(agent, is_old)

    assert {(liveness.status, liveness.idle, liveness.up) for liveness in seen} == {("idle", True, True)}
