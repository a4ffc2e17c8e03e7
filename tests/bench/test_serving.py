"""The rows of served tokens, as far as they go without vLLM: clients count, processes answer, and lines are drawn."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from bench.asked import asking
from bench.closed import Closed
from bench.effort import Effort
from bench.errors import BenchError, NotHere
from bench.serving import BATCHING, MIDDLE_ROW, OURS, PRODUCTS, TINY_ROW, VLLM, VLLM_ALL

LOAD = Closed(streams=3, prompt_tokens=4, output_tokens=5, vocabulary=100)


class Answers(BaseHTTPRequestHandler):
    """Streams as many tokens as `counted` says, whatever is asked for; remembers what that was."""

    counted = 5
    asked: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(json.loads(body))
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":%d}}\n\n' % self.counted
        self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"data: {}\n\n" * 5 + usage)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def server() -> Iterator[str]:
    Answers.counted, Answers.asked = 5, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_window_sends_every_prompt_once_and_no_two_windows_share_one(server: str) -> None:
    assert LOAD.window(server, "model", 1) > 0
    assert LOAD.window(server, "model", 2) > 0
    prompts = {json.dumps(asked["prompt"]) for asked in Answers.asked}
    assert len(prompts) == len(Answers.asked) == 6
    assert all(asked["max_tokens"] == 5 and asked["ignore_eos"] for asked in Answers.asked)


def test_an_answer_of_fewer_tokens_is_no_measurement(server: str) -> None:
    Answers.counted = 4
    with pytest.raises(BenchError, match="not 5"):
        LOAD.window(server, "model", 1)


def test_a_process_answers_each_seed_with_a_figure(tmp_path: Path) -> None:
    with asking("tests.bench.windower", log=tmp_path / "log") as (window, said):
        assert said == "twice the seed"
        assert [window(seed) for seed in (1, 20)] == [2.0, 40.0]


def test_a_process_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    with (
        asking("tests.bench.windower", log=tmp_path / "log") as (window, _),
        pytest.raises(BenchError, match=r"tests\.bench\.windower ended: .*no window for 13"),
    ):
        window(13)


def figures(**rates: float) -> dict[str, np.ndarray]:
    """Windows of these rates that hardly differ."""
    return {name: rate * np.linspace(0.999, 1.001, 5) for name, rate in rates.items()}


def test_the_lines_hold_ours_against_each_peer_and_the_bound() -> None:
    measured = figures(ours=240.0, vllm=50.0) | {VLLM_ALL: figures(x=100.0)["x"], BATCHING: figures(x=60.0)["x"]}
    measured[PRODUCTS] = figures(x=500.0)["x"]
    vllm, transformers, bound = MIDDLE_ROW.results(measured, ("a fact",))
    assert (vllm.met, transformers.met, bound.met) == (True, True, False)
    assert bound.estimate.value == pytest.approx(0.48, rel=1e-3)
    beside = {quantity.name: quantity.estimate.value for quantity in vllm.quantities}
    assert beside["ours over vllm on all cores"] == pytest.approx(2.4, rel=1e-3)
    assert beside[f"output tokens a second, {OURS}"] == pytest.approx(240, rel=1e-2)


def test_the_tiny_row_has_no_bound() -> None:
    lines = TINY_ROW.results(
        figures(ours=9000.0) | {VLLM: figures(x=3200.0)["x"], BATCHING: figures(x=1300.0)["x"]}, ()
    )
    assert [line.met for line in lines] == [True, True]
    assert "goal beyond it 3 ×" in " ".join(lines[0].how.split())


def test_without_vllm_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLEDGER_VLLM_VENV", str(tmp_path))
    with pytest.raises(NotHere, match="run bench/vllm-env"):
        TINY_ROW.measure(Effort(quick=True))
