"""The core's loop against a peer that does not read: the engine never waits for it, and memory stays bounded."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine import core as core_module
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.cells import CellModel
from kvledger_engine.channel import CoreChannel, encode_frame, reader_of_core
from kvledger_engine.config import EngineConfig
from kvledger_engine.core import Core
from kvledger_engine.errors import ComputeLost
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Cancel, Drain, Finished, FromCore, NewRequest, Tokens
from kvledger_engine.terminations import Terminations

CONFIG = EngineConfig(
    capacity_blocks=1024, max_num_seqs=16, max_waiting=16, max_model_len_tokens=16384, max_num_batched_tokens=512
)


class LostAfter(CellModel):
    """A cell model that is lost after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(capacity_blocks=1024, block_size_tokens=16, vocab_size=256)
        self._left = steps

    def execute(self, batch: Batch) -> I32:
        self._left -= 1
        if self._left < 0:
            raise ComputeLost("the device is gone")
        return super().execute(batch)


class Held(CellModel):
    """A cell model whose second step stops before or after it has computed, until it is let go."""

    def __init__(self, *, computed: bool) -> None:
        super().__init__(capacity_blocks=1024, block_size_tokens=16, vocab_size=256)
        self.there, self.let_go = threading.Event(), threading.Event()
        self._computed, self._steps = computed, 0

    def execute(self, batch: Batch) -> I32:
        self._steps += 1
        sampled = super().execute(batch) if self._computed else None
        if self._steps == 2:
            self.there.set()
            assert self.let_go.wait(10)
        return super().execute(batch) if sampled is None else sampled


class Run:
    """A core in a thread over a ledger in memory; `peer` is the HTTP process's end of its socket."""

    def __init__(self, terminations: Terminations, compute: Compute) -> None:
        ours, self.peer = socket.socketpair()
        self.ledger = Ledger.in_memory(CONFIG.limits())
        self.channel = CoreChannel(ours)
        engine = EngineLoop(CONFIG, self.ledger, compute)
        self.core = Core(engine, self.channel, terminations, drain_timeout_seconds=60)
        self.thread = threading.Thread(target=self.core.run, daemon=True)
        self.thread.start()

    def gauge(self, name: str) -> float:
        return float(self.ledger.stats.values[self.ledger.stats.gauge(name)])

    def read_to_the_end(self) -> list[FromCore]:
        reader, found = reader_of_core(), []
        while data := self.peer.recv(1 << 16):
            for frame in reader.feed(data):
                found += frame
        return found


@pytest.fixture
def compute() -> Compute:
    """What the core computes with."""
    return CellModel(capacity_blocks=1024, block_size_tokens=16, vocab_size=256)


@pytest.fixture
def run(compute: Compute) -> Iterator[Run]:
    """A running core."""
    terminations = Terminations()
    made = Run(terminations, compute)
    yield made
    made.peer.close()
    made.thread.join(10)
    assert not made.thread.is_alive()
    made.channel.close()
    terminations.close()


def test_a_peer_that_does_not_read_has_its_requests_cancelled_and_hears_so_later(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core_module, "MAX_QUEUED_BYTES", 4096)
    requests = [NewRequest(request_id=f"r{i}", prompt=[i, 1, 2], max_tokens=16000) for i in range(4)]
    run.peer.sendall(encode_frame(requests))
    while "action=cancel_all" not in caplog.text:
        run.thread.join(0.01)
    run.peer.sendall(encode_frame([Drain()]))
    # Whoever reads again gets every token and every end.
    reading: list[FromCore] = []
    reader = threading.Thread(target=lambda: reading.extend(run.read_to_the_end()))
    reader.start()
    run.thread.join(10)
    run.channel.close()
    reader.join(10)
    ends = [message for message in reading if isinstance(message, Finished)]
    assert sorted(end.request_id for end in ends) == ["r0", "r1", "r2", "r3"]
    assert {end.reason for end in ends} == {"cancelled"}
    assert (
        sum(len(message.tokens) for message in reading if isinstance(message, Tokens))
        == sum(end.output_tokens for end in ends)
        > 0
    )
    assert run.gauge("active_blocks") == 0


def test_a_peer_that_closes_ends_the_core_with_nothing_held(run: Run) -> None:
    run.peer.sendall(encode_frame([NewRequest(request_id="a", prompt=[1], max_tokens=16000)]))
    assert run.peer.recv(1)
    run.peer.close()
    run.thread.join(10)
    assert not run.thread.is_alive()
    assert run.gauge("active_blocks") == 0
    assert not run.core.ends_cleanly


@pytest.mark.parametrize("told", [[], [Drain()]])
def test_an_end_is_a_clean_one_when_the_http_process_asked_for_it(run: Run, told: list[Drain]) -> None:
    if told:
        run.peer.sendall(encode_frame(told))
    else:
        run.peer.close()
    run.thread.join(10)
    assert run.core.ends_cleanly is bool(told)


@pytest.mark.parametrize("compute", [LostAfter(3)])
def test_a_core_whose_compute_is_lost_tells_every_client_and_ends(run: Run) -> None:
    requests = [NewRequest(request_id=f"r{i}", prompt=[i] * 400, max_tokens=8000) for i in range(16)]
    run.peer.sendall(encode_frame(requests))
    run.thread.join(10)
    assert not run.thread.is_alive()
    run.channel.close()
    ends = {message.request_id: message.reason for message in run.read_to_the_end() if isinstance(message, Finished)}
    assert ends == {f"r{i}": "engine_error" for i in range(16)}
    assert not run.core.ends_cleanly
    assert run.gauge("active_blocks") == 0


@pytest.mark.parametrize("compute", [Held(computed=False), Held(computed=True)], ids=["planned", "computed"])
def test_a_cancel_that_comes_while_a_step_computes_is_acted_on_after_it_and_before_the_next_plan(
    run: Run, compute: Held
) -> None:
    run.peer.sendall(encode_frame([NewRequest(request_id="a", prompt=[1] * 40, max_tokens=8000)]))
    assert compute.there.wait(10)
    held, steps = run.gauge("active_blocks"), run.gauge("steps")
    assert held == 3
    sent_ns = run.ledger.clock.now_ns()
    run.peer.sendall(encode_frame([Cancel(request_ids=["a"], cause="disconnect", since_ns=sent_ns)]))
    compute.let_go.set()
    run.peer.sendall(encode_frame([Drain()]))
    run.thread.join(10)
    run.channel.close()
    told = run.read_to_the_end()
    assert run.gauge("steps") == steps + 1, "the step it came in, and none after it"
    assert sum(len(message.tokens) for message in told if isinstance(message, Tokens)) == 2
    assert [(end.reason, end.output_tokens) for end in told if isinstance(end, Finished)] == [("cancelled", 2)]
    assert run.gauge("active_blocks") == 0
