"""Real agents, a cluster's Prometheus and two global ones: which ranks are where, what arrives, how an end is seen."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from kvledger_alerts.fleet_rows import DOWN, fleet_rows, questions
from tests.alerts.stack import ask, wait_for
from tests.fleet.stack import PATIENCE_SECONDS, SCALED, Prometheus, cluster, federation, ledger, receiver
from tests.fleet.test_configuration import federated
from tests.reliability.processes import AgentProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.needs("tmpfs"),
    pytest.mark.needs("prometheus"),
]

RECORDED = {row.record for row in fleet_rows(SCALED)}
OURS = '{__name__=~"(kvledger_|.+:kvledger_|ALERTS|up).*",job!="prometheus",job!="kvledger-clusters"}'


Answer = list[tuple[tuple[tuple[str, str], ...], float]]


@dataclass(frozen=True)
class Fleet:
    """Machines a and b share the ranks of `chat`; c is there to go away."""

    a: AgentProcess
    b: AgentProcess
    c: AgentProcess
    east: Prometheus
    asking: Prometheus
    written_to: Prometheus


@contextmanager
def machine(directory: Path, ranks: dict[str, tuple[int, ...]]) -> Iterator[AgentProcess]:
    """A directory of ledgers with an agent over it."""
    directory.mkdir()
    with ExitStack() as stack:
        for engine, numbers in ranks.items():
            for rank in numbers:
                stack.enter_context(ledger(directory, engine, rank))
        yield stack.enter_context(AgentProcess(directory))


@pytest.fixture(name="fleet", scope="module")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    memory, disk = Path(tempfile.mkdtemp(prefix="kvledger-test-", dir="/dev/shm")), tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, memory)
        a = stack.enter_context(machine(memory / "a", {"chat": (0, 1)}))
        b = stack.enter_context(machine(memory / "b", {"chat": (2, 3), "other": (0,)}))
        c = stack.enter_context(machine(memory / "c", {"passing": (0,)}))
        written_to = stack.enter_context(receiver(disk / "receiver"))
        agents = [agent.url for agent in (a, b, c)]
        east = stack.enter_context(cluster(disk / "east", "east", agents, receiver=written_to.url))
        asking = stack.enter_context(federation(disk / "federation", {"east": east.address}))
        yield Fleet(a, b, c, east, asking, written_to)


def address(agent: AgentProcess) -> str:
    return agent.url.removeprefix("http://").rstrip("/")


def test_each_machines_agent_has_its_own_ranks_and_prometheus_has_them_all_once(fleet: Fleet) -> None:
    expected = {
        *((address(fleet.a), "chat", rank) for rank in "01"),
        *((address(fleet.b), "chat", rank) for rank in "23"),
        (address(fleet.b), "other", "0"),
    }

    def seen() -> set[tuple[str, str, str]]:
        found = fleet.east.query('kvledger_engine_up{engine!="passing"} == 1')
        return {(labels["instance"], labels["engine"], labels["rank"]) for labels, _ in found}

    wait_for(lambda: seen() == expected, "every rank is seen")
    (whole,) = fleet.east.query('sum by (engine) (kvledger_pool_capacity_blocks{engine="chat"})')
    assert whole == ({"engine": "chat"}, 4 * 64)


def test_a_question_has_the_same_answer_from_the_recorded_series_as_from_the_engines_own(fleet: Fleet) -> None:
    fleet.east.until(f"{DOWN}", "the rules are evaluated")
    answered = 0
    for question in questions(SCALED):

        def same(raw: str = question.raw, recorded: str = question.recorded) -> tuple[Answer, Answer] | None:
            # Both as of the moment at which the rules were evaluated last.
            ((_, moment),) = fleet.east.query(f"timestamp({DOWN})")
            both = at(fleet.east, raw, moment), at(fleet.east, recorded, moment)
            return both if both[0] == both[1] else None

        answered += bool(wait_for(same, question.title)[0])
    assert answered >= 6, "the others have nothing to say of idle engines"


def at(prometheus: Prometheus, expression: str, moment: float) -> Answer:
    """An answer as of a moment, by labels without the name."""
    query = urlencode({"query": expression, "time": moment})
    found = ask(f"{prometheus.url}/api/v1/query?{query}")["data"]["result"]
    return sorted(
        (tuple(sorted((k, v) for k, v in one["metric"].items() if k != "__name__")), round(float(one["value"][1]), 9))
        for one in found
    )


@pytest.mark.parametrize("way", ["asking", "written_to"])
def test_the_global_one_gets_what_the_files_say_with_the_labels_of_the_cluster(fleet: Fleet, way: str) -> None:
    world: Prometheus = getattr(fleet, way)

    def to_come() -> set[str]:
        local = {labels["__name__"] for labels, _ in fleet.east.query(OURS)}
        return {name for name in local if federated(name, {"job": "kvledger"})}

    # The rules are evaluated some time after the first scrape.
    wait_for(lambda: len(to_come() & RECORDED) > 10, "the cluster has recorded series", PATIENCE_SECONDS)
    expected = to_come()

    def arrived() -> set[str]:
        return {labels["__name__"] for labels, _ in world.query(OURS)} - {"ALERTS"}

    wait_for(lambda: arrived() >= expected - {"ALERTS"}, "everything has arrived", PATIENCE_SECONDS)
    assert not [name for name in arrived() if not federated(name, {"job": "kvledger"})]
    for labels, _ in world.query('kvledger_engine_up{engine="chat",rank="2"}'):
        assert labels == {
            "__name__": "kvledger_engine_up", "cluster": "east", "job": "kvledger", "instance": address(fleet.b),
            "engine": "chat", "model": labels["model"], "rank": "2",
        }  # fmt: skip

    def cores() -> list[tuple[dict[str, str], float]]:
        return world.query("sum by (cluster, job) (model:kvledger_engine_up:count)")

    # What was recorded first may be of the engines that had been scraped by then.
    wait_for(lambda: [count for _, count in cores() if count >= 5], "all engine cores are counted", PATIENCE_SECONDS)
    assert [labels for labels, _ in cores()] == [{"cluster": "east", "job": "kvledger"}]
    assert {labels["cluster"] for labels, _ in world.query('up{job="kvledger"}')} == {"east"}


def test_an_agent_that_is_gone_is_gone_where_it_is_sent_and_lingers_where_it_is_asked_for(fleet: Fleet) -> None:
    passing = 'kvledger_engine_up{engine="passing"}'
    for prometheus in (fleet.asking, fleet.written_to):
        prometheus.until(passing, "it is seen")

    fleet.c.kill()

    wait_for(lambda: not fleet.written_to.query(passing), "its end is sent", PATIENCE_SECONDS)
    assert fleet.asking.query(passing), "federation knows no end"
    absent = f'ALERTS{{alertname="KvledgerAgentAbsent",alertstate="firing",instance="{address(fleet.c)}"}}'
    for prometheus in (fleet.asking, fleet.written_to):
        ((labels, _),) = prometheus.until(absent, "the cluster's alert is seen everywhere")
        assert labels["cluster"] == "east"
