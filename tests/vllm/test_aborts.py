"""Clients that go away in each of vLLM's states, one by one: all is given back, and what was waited for is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.v1.outputs import KVConnectorOutput

from kvledger.words import RequestState, WaitCause
from tests.vllm.mirrored import Mirrored, mirrored

both = pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
VICTIM = "victim"


def steps(mirror: Mirrored, number: int = 1) -> None:
    for _ in range(number):
        mirror.bare.step()
        mirror.check("step")


def behind_a_full_pool(mirror: Mirrored) -> None:
    mirror.bare.add("first", [5] * 300, max_tokens=90)
    mirror.bare.add(VICTIM, [6] * 400, max_tokens=4)
    steps(mirror, 3)


def without_a_seat(mirror: Mirrored) -> None:
    for number in range(4):
        mirror.bare.add(f"r{number}", [5 + number] * 20, max_tokens=90)
    mirror.bare.add(VICTIM, [9] * 20, max_tokens=4)
    steps(mirror, 2)


def beyond_a_steps_tokens(mirror: Mirrored) -> None:
    mirror.bare.add("long", [5] * 400, max_tokens=4)
    mirror.bare.add(VICTIM, [6] * 20, max_tokens=4)
    steps(mirror)


def not_looked_at_yet(mirror: Mirrored) -> None:
    mirror.bare.add(VICTIM, [6] * 20, max_tokens=4)


def for_a_grammar(mirror: Mirrored) -> None:
    beside(mirror)
    mirror.bare.add(VICTIM, [6] * 20, max_tokens=4, pattern="t5( t6)*")
    steps(mirror, 2)


def paused(mirror: Mirrored) -> None:
    beside(mirror)
    steps(mirror)
    mirror.scheduler.set_pause_state(type(mirror.scheduler.pause_state).PAUSED_NEW)
    mirror.bare.add(VICTIM, [6] * 20, max_tokens=4)
    steps(mirror, 2)


@dataclass(frozen=True)
class Case:
    """How a request gets to wait, vLLM's status of it then, and the cause that the ledger must tell."""

    begin: Callable[[Mirrored], None]
    status: str
    cause: WaitCause


@both
@pytest.mark.parametrize(
    "case",
    [
        Case(behind_a_full_pool, "WAITING", WaitCause.POOL),
        Case(without_a_seat, "WAITING", WaitCause.BATCH_SLOTS),
        Case(beyond_a_steps_tokens, "WAITING", WaitCause.TOKEN_BUDGET),
        Case(not_looked_at_yet, "WAITING", WaitCause.STEP),
        Case(for_a_grammar, "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", WaitCause.DEFERRED),
        Case(paused, "WAITING", WaitCause.PAUSED),
    ],
    ids=lambda case: case.begin.__name__,
)
def test_an_abort_while_waiting_ends_the_wait_under_its_cause_and_leaves_nothing(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool, case: Case
) -> None:
    with mirrored(
        tiny_model,
        ledger_directory,
        blocks=33,
        seed=41,
        asynchronous=asynchronous,
        max_num_seqs=4,
        max_num_batched_tokens=128,
    ) as mirror:
        case.begin(mirror)
        assert mirror.scheduler.requests[VICTIM].status.name == case.status
        assert row_of(mirror, VICTIM) == ("waiting", case.cause.word)
        waited = waits(mirror, case.cause)
        aborted(mirror)
        assert waits(mirror, case.cause) == waited + 1


@both
def test_an_abort_of_a_preempted_request_ends_a_wait_that_had_no_blocks(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=9, seed=42, asynchronous=asynchronous) as mirror:
        for number in range(2):
            mirror.bare.add(f"r{number}", [5 + number] * 38, max_tokens=90)
        mirror.bare.add(VICTIM, [9] * 20, max_tokens=90)
        victim = mirror.scheduler.requests[VICTIM]
        while victim.status.name != "PREEMPTED":
            steps(mirror)
        assert row_of(mirror, VICTIM)[0] == "preempted"
        aborted(mirror)


@both
@pytest.mark.parametrize("generated", [0, 3], ids=["prefilling", "decoding"])
def test_an_abort_of_a_running_request_gives_its_blocks_back_at_once(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool, generated: int
) -> None:
    with mirrored(
        tiny_model, ledger_directory, blocks=65, seed=43, asynchronous=asynchronous, max_num_batched_tokens=64
    ) as mirror:
        beside(mirror)
        mirror.bare.add(VICTIM, [6] * (60 if generated else 400), max_tokens=90)
        victim = mirror.scheduler.requests[VICTIM]
        while victim.status.name != "RUNNING" or victim.num_output_tokens < generated:
            steps(mirror)
        assert row_of(mirror, VICTIM) == ("running", None)
        assert (
            bool(victim.num_output_tokens)
            == (victim.num_computed_tokens >= victim.num_prompt_tokens)
            == bool(generated)
        )
        assert len(mirror.tables[VICTIM]) > 0
        aborted(mirror)


def connected(tiny_model: Path, directory: Path, *, asynchronous: bool, **options: Any) -> Any:
    """A mirrored scheduler of 64 blocks with the slow connector."""
    transfer = KVTransferConfig(
        kv_connector="SlowConnector", kv_connector_module_path="tests.vllm.connector", kv_role="kv_both"
    )
    options |= {"asynchronous": asynchronous, "kv_transfer_config": transfer}
    return mirrored(tiny_model, directory, blocks=65, seed=44, **options)


@both
def test_an_abort_while_blocks_are_filled_from_elsewhere_keeps_them_until_the_transfer_is_over(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    victim = f"fetched-{VICTIM}"
    with connected(tiny_model, ledger_directory, asynchronous=asynchronous) as mirror:
        beside(mirror)
        mirror.bare.add(victim, [6] * 200, max_tokens=4)
        steps(mirror, 3)
        assert mirror.scheduler.requests[victim].status.name == "WAITING_FOR_REMOTE_KVS"
        assert row_of(mirror, victim) == ("waiting", WaitCause.DEFERRED.word)
        held = len(mirror.tables[victim])
        mirror.bare.abort(victim)
        mirror.check("aborted")
        assert row_of(mirror, victim)[0] == "finishing"
        assert (counted(mirror), len(mirror.tables[victim])) == ((1, 0, 0), held)
        steps(mirror, 3)
        mirror.bare.transferred = KVConnectorOutput(finished_recving={victim})
        steps(mirror, 4)
        assert victim not in mirror.scheduler.requests
        assert counted(mirror) == (1, 1, 1)
        drained(mirror)


@both
def test_a_request_that_was_filled_from_elsewhere_runs_then_and_is_told_so(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    victim = f"fetched-{VICTIM}"
    with connected(tiny_model, ledger_directory, asynchronous=asynchronous) as mirror:
        beside(mirror)
        mirror.bare.add(victim, [6] * 200, max_tokens=4)
        steps(mirror, 3)
        waited = waits(mirror, WaitCause.DEFERRED)
        mirror.bare.transferred = KVConnectorOutput(finished_recving={victim})
        steps(mirror, 3)
        assert row_of(mirror, victim) == ("running", None)
        assert waits(mirror, WaitCause.DEFERRED) == waited + 1
        drained(mirror)


@both
def test_an_abort_of_a_finished_request_whose_blocks_are_being_sent_changes_nothing_of_how_it_ended(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    victim = f"sent-{VICTIM}"
    with connected(tiny_model, ledger_directory, asynchronous=asynchronous) as mirror:
        beside(mirror)
        mirror.bare.add(victim, [6] * 60, max_tokens=4)
        while not mirror.scheduler.requests[victim].is_finished():
            steps(mirror)
        before = row_of(mirror, victim), len(mirror.tables[victim])
        mirror.bare.abort(victim)
        mirror.check("aborted")
        assert before == (row_of(mirror, victim), len(mirror.tables[victim]))
        assert (before[0][0], before[1] > 0, counted(mirror)) == ("finishing", True, (0, 0, 0))
        mirror.bare.transferred = KVConnectorOutput(finished_sending={victim})
        steps(mirror, 4)
        stats = mirror.reader.sample().stats
        assert sum((stats.tenant_counter("requests_total", finish_reason="length") or {}).values()) == 1
        released = stats.histogram("release", cause="finish")
        assert (counted(mirror), released and released.count) == ((0, 0, 0), 1)
        drained(mirror)


def test_however_many_ended_requests_wait_for_their_transfer_each_has_a_slot(
    tiny_model: Path, ledger_directory: Path
) -> None:
    """More than the operator has planned for: there are as many as blocks."""
    with connected(tiny_model, ledger_directory, asynchronous=False, max_num_seqs=4, max_requests=8) as mirror:
        names = [f"sent-{number}" for number in range(50)]
        for number, name in enumerate(names):
            mirror.bare.add(name, [5 + number] * 10, max_tokens=2)
        for _ in range(40):
            steps(mirror)
        sample = mirror.reader.sample()
        assert sample.slots.state.tolist() == [int(RequestState.FINISHING)] * 50
        assert sample.control["overflows"] == 0
        mirror.bare.add("last", [3] * 10, max_tokens=2)
        mirror.bare.transferred = KVConnectorOutput(finished_sending=set(names))
        steps(mirror, 4)
        drained(mirror)


def beside(mirror: Mirrored) -> None:
    """Another request, which goes on whatever becomes of the victim."""
    mirror.bare.add("other", [5] * 20, max_tokens=90)


def row_of(mirror: Mirrored, request_id: str) -> tuple[str, str | None]:
    """State and wait cause of a request in the ledger."""
    sample = mirror.reader.sample()
    (at,) = [i for i, head in enumerate(sample.slots.id_head.tolist()) if head == request_id.encode()[:40]]
    cause = int(sample.wait_causes()[at])
    return RequestState(int(sample.slots.state[at])).word, WaitCause(cause).word if cause >= 0 else None


def waits(mirror: Mirrored, cause: WaitCause) -> float:
    """Waits for a cause that are over."""
    histogram = mirror.reader.sample().stats.histogram("wait", cause=cause.word, **{"class": "default"})
    assert histogram is not None
    return histogram.count


def counted(mirror: Mirrored) -> tuple[float, float, float]:
    """(cancellations, cancelled requests that are over, releases after a client went away)."""
    stats = mirror.reader.sample().stats
    released = stats.histogram("release", cause="disconnect")
    assert released is not None
    over = sum((stats.tenant_counter("requests_total", finish_reason="cancelled") or {}).values())
    return stats.counter("cancellations_total", cause="disconnect") or 0, over, released.count


def aborted(mirror: Mirrored) -> None:
    """The victim's client goes away: it is gone from vLLM and the ledger, which has counted it once."""
    assert counted(mirror) == (0, 0, 0)
    names = len(mirror.reader.sample().slots)
    mirror.bare.abort(VICTIM)
    mirror.check("aborted")
    assert (counted(mirror), len(mirror.reader.sample().slots)) == ((1, 1, 1), names - 1)
    drained(mirror)


def drained(mirror: Mirrored) -> None:
    """What else there is goes on, ends, and leaves nothing."""
    steps(mirror, 2)
    mirror.bare.drain()
    mirror.bare.abort(*mirror.scheduler.requests)
    mirror.bare.step()
    mirror.bare.drain()
    mirror.check("drained")
    sample = mirror.reader.sample()
    assert (sample.stats.whole("active_blocks"), len(sample.slots), len(sample.pins)) == (0, 0, 0)
    assert mirror.corrections() == 0
