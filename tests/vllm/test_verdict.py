"""What the agent says of a real vLLM under load: the scenarios it can be brought into, judged by the same rules.

It cannot be brought into an overload of one tenant, since its page counts refusals of all together, nor into a slow
allocator, which it does not time.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvledger.reader import Reader
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.observation import Observation
from tests.verdict.live import under_load
from tests.verdict.load import Stream
from tests.vllm.model import LONGEST_TOKENS
from tests.vllm.server import MODEL, VllmServer, vllm_server

WINDOW_SECONDS, IN_A_ROW, MOST_SECONDS = 8.0, 7, 150.0
"""A reason has to be said so often in a row; how long that takes is the machine's affair."""
STALL_SECONDS = 3.0
"""How long nobody may get anything before it is a stall, where steps are short."""
LIMITS = ("--max-model-len", "2048", "--max-num-seqs")


@contextmanager
def serving(model: Path, blocks: int, seqs: int, *arguments: str) -> Iterator[VllmServer]:
    with (
        tempfile.TemporaryDirectory(prefix="kvledger-vllm-", dir="/dev/shm") as directory,
        tempfile.TemporaryDirectory() as logs,
        vllm_server(
            model, Path(directory), Path(logs) / "log", blocks=blocks, arguments=(*LIMITS, str(seqs), *arguments)
        ) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def small_pool(tiny_model: Path) -> Iterator[VllmServer]:
    """64 blocks of 32 tokens, slots for all."""
    with serving(tiny_model, 65, 64) as server:
        yield server


@pytest.fixture(scope="module")
def few_slots(tiny_model: Path) -> Iterator[VllmServer]:
    """512 blocks, four slots, 128 tokens a step."""
    with serving(tiny_model, 513, 4, "--max-num-batched-tokens", "128") as server:
        yield server


@pytest.fixture(scope="module")
def small_steps(tiny_model: Path) -> Iterator[VllmServer]:
    """2,048 blocks, one slot, one token a step: a prompt takes as many steps as it has tokens."""
    longest = ("--max-model-len", str(LONGEST_TOKENS))
    with serving(tiny_model, 2049, 1, "--max-num-batched-tokens", "1", *longest) as server:
        yield server


@pytest.fixture(scope="module")
def door(tiny_model: Path) -> Iterator[VllmServer]:
    """64 blocks, slots for all, and no more than nine requests in flight: whoever comes then is refused at the door."""
    with serving(tiny_model, 65, 64, "--max-num-queued-reqs", "9") as server:
        yield server


@dataclass(slots=True)
class Said:
    """What an agent said, look by look, and the longest time in which no request got a token."""

    reasons: list[str] = field(default_factory=list)
    longest_silence_seconds: float = 0.0
    _last: tuple[float, int] = (-1.0, 0)

    def add(self, observation: Observation) -> None:
        """One look."""
        assert observation.verdict is not None
        assert observation.clock is not None
        self.reasons.append(observation.verdict.reason.word)
        tokens = sum(observation.totals.counters["generation_tokens_total"].values())
        if tokens != self._last[0]:
            self._last = tokens, observation.clock.now_ns
        self.longest_silence_seconds = max(
            self.longest_silence_seconds, (observation.clock.now_ns - self._last[1]) / 1e9
        )

    def ends_with(self, reason: str) -> bool:
        """Whether it was said so often in a row."""
        return self.reasons[-IN_A_ROW:] == [reason] * IN_A_ROW


def said(
    server: VllmServer,
    streams: Sequence[Stream],
    awaited: str,
    *,
    scraped: bool = False,
    silence_seconds: float = 0.0,
    most_seconds: float = MOST_SECONDS,
) -> Said:
    """What an agent that watches says until it has said the reason so often in a row, and nobody got a token for so
    long; or until time is up.
    """
    config = AgentConfig(
        directory=server.directory,
        interval_seconds=0.5,
        verdict_window_seconds=WINDOW_SECONDS,
        scrape=(f"vllm={server.url}",) if scraped else (),
        scrape_interval_seconds=0.5,
    )
    found = Said()
    deadline, pause = time.monotonic() + most_seconds, threading.Event()
    with under_load(server.url, streams, seed=0, model=MODEL), closing(Agent(config)) as agent:
        agent.sample_once()
        agent.start()
        seen = agent.fleet.round
        while time.monotonic() < deadline and not (
            found.ends_with(awaited) and found.longest_silence_seconds >= silence_seconds
        ):
            while (fleet := agent.fleet).round == seen:
                pause.wait(0.05)
            seen = fleet.round
            (observation,) = fleet.observations
            found.add(observation)
        print(observation.verdict)
    return found


@pytest.mark.parametrize(
    ("reason", "streams"),
    [
        ("many_requests", [Stream(clients=40, prompt=120, tokens=60, tenant="")]),
        ("long_requests", [Stream(clients=6, prompt=640, tokens=60, tenant="")]),
        ("preemption_thrash", [Stream(clients=12, prompt=60, tokens=600, tenant="")]),
        (
            "one_tenant",
            [
                Stream(clients=30, prompt=120, tokens=60, tenant="", salt="research"),
                Stream(clients=6, prompt=120, tokens=60, tenant="", salt="chat"),
            ],
        ),
        ("shared_prefixes", [Stream(clients=40, prompt=1320, prefix=1280, tokens=40, tenant="")]),
        (
            "head_of_line",
            [
                Stream(clients=2, prompt=1500, tokens=4, tenant=""),
                Stream(clients=6, prompt=40, tokens=150, tenant=""),
                Stream(clients=6, prompt=40, tokens=400, tenant=""),
            ],
        ),
        ("full_use", [Stream(clients=4, prompt=440, tokens=40, tenant="")]),
        ("light", [Stream(rate=1, prompt=40, tokens=4, tenant="")]),
    ],
)
def test_a_small_pool_is_taken_for_what_it_is(small_pool: VllmServer, reason: str, streams: list[Stream]) -> None:
    found = said(small_pool, streams, reason)

    assert found.ends_with(reason), found


@pytest.mark.parametrize(
    ("reason", "streams"),
    [
        ("batch_slots", [Stream(clients=16, prompt=40, tokens=60, tenant="")]),
        ("token_budget", [Stream(clients=4, prompt=1800, tokens=2, tenant="")]),
        ("compute", [Stream(clients=4, prompt=40, tokens=400, tenant="")]),
    ],
)
def test_an_engine_of_few_slots_is_taken_for_what_it_is(
    few_slots: VllmServer, reason: str, streams: list[Stream]
) -> None:
    found = said(few_slots, streams, reason)

    assert found.ends_with(reason), found


def test_a_long_prompt_in_small_pieces_is_no_stall_though_nobody_gets_a_token_for_seconds(
    small_steps: VllmServer,
) -> None:
    """One prompt takes longer than a stall; what waits behind it waits for the one token of a step."""
    # As many steps as take several times a stall on a machine that makes 1,000 of them a second.
    long, short = (Stream(clients=2, prompt=tokens, tokens=2, tenant="") for tokens in (12_000, 20))

    found = said(small_steps, [long, short], "token_budget", silence_seconds=STALL_SECONDS)

    assert found.ends_with("token_budget"), found
    assert found.longest_silence_seconds >= STALL_SECONDS
    assert "no_progress" not in found.reasons, found


# Several times what nine in flight can be served of, on a fast machine, too.
FLOOD = [Stream(rate=100, prompt=100, tokens=200, tenant="")]


def test_refusals_that_only_the_servers_page_counts_are_an_overload(door: VllmServer) -> None:
    found = said(door, FLOOD, "overload", scraped=True)

    assert found.ends_with("overload"), found


def test_without_the_page_the_same_flood_is_what_those_do_who_were_let_in(door: VllmServer) -> None:
    found = said(door, FLOOD, "overload", most_seconds=4 * WINDOW_SECONDS)

    assert len(found.reasons) > 2 * IN_A_ROW
    assert "overload" not in found.reasons, found


def test_a_cap_on_requests_in_flight_before_a_pool_with_room_is_a_limit_at_the_door(door: VllmServer) -> None:
    found = said(door, [Stream(rate=120, prompt=20, tokens=100, tenant="")], "quota", scraped=True)

    assert found.ends_with("quota"), found


def test_a_stopped_core_with_work_has_no_heartbeat(few_slots: VllmServer) -> None:
    with closing(Reader.open(few_slots.ledger())) as reader:
        core = reader.sample().writer_pid
    assert core is not None
    stopping = threading.Timer(4.0, os.kill, (core, signal.SIGSTOP))
    stopping.start()
    try:
        found = said(few_slots, [Stream(clients=4, prompt=40, tokens=400, tenant="")], "no_heartbeat")
    finally:
        stopping.cancel()
        os.kill(core, signal.SIGCONT)

    assert found.ends_with("no_heartbeat"), found
