"""Output tokens a second of one vLLM server with the plugin against without: `python -m bench.vllm_throughput`.

One server process under load from the official client; between two windows of 100 steps the hooks are taken out of its
engine core or put in again, which then tell everything anew: that is not measured. Tokens are counted and timed where
they leave the engine core. Every window proves which kind it was. In vLLM's environment.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from bench import vllm_waves as load
from bench.answers import Answer, answering
from bench.effort import Effort
from bench.errors import BenchError
from bench.tmpfs import ledger_directory
from bench.vllmenv import version
from kvledger.reader import Reader
from kvledger_agent.scrape.page import parse_page
from tests.vllm.conductor import TOGGLE, Conductor
from tests.vllm.model import save_tiny_llama
from tests.vllm.server import VllmServer, vllm_server
from tests.vllm.toggle import STEPS

BLOCKS = 2049
LIMITS = (
    "--max-model-len", "2048", "--max-num-seqs", str(load.CONCURRENT), "--max-num-batched-tokens", "2048",
    "--disable-uvicorn-access-log",
)  # fmt: skip
_PREEMPTIONS = "vllm:num_preemptions_total"
_MESSAGES_A_STEP = 1
_MANY_REQUESTS = 1 << 15
FULL_ROUNDS, WINDOWS_A_ROUND = 10, 40


def measure(effort: Effort) -> Answer:
    """Output tokens a second in the windows of each kind."""
    with ledger_directory() as directory, closing(Conductor(hook=TOGGLE)) as conductor:
        model = directory / "model"
        save_tiny_llama(model)
        # Who ends while the hooks are out is never told of.
        environment = {**conductor.environment, "KVLEDGER_MAX_REQUESTS": str(_MANY_REQUESTS)}
        with vllm_server(
            model, directory / "ledgers", directory / "log", blocks=BLOCKS, arguments=LIMITS, environment=environment
        ) as server:
            over: list[dict[str, Any]] = []
            for _ in effort.rounds(FULL_ROUNDS, 1):
                over += load.under_load(server.url, lambda: conductor.windows(WINDOWS_A_ROUND))
            _check_server(server)
    for window in over:
        _check(window)
    rates = {
        kind: np.array([window["tokens"] / window["seconds"] for window in over if window["plugged"] is plugged])
        for kind, plugged in (("without", False), ("with", True))
    }
    messages = np.median([window["messages"] / STEPS for window in over if window["plugged"]])
    facts = f"vLLM {version()}", f"{messages:.3g} messages of the tap a step, those of arrivals among them"
    return Answer(rates, facts)


def _check(window: Mapping[str, Any]) -> None:
    """That a window was of the kind it is counted as. Raises `BenchError`."""
    messages = window["messages"]
    if window["plugged"]:
        if not window["traces"] or messages < _MESSAGES_A_STEP * (STEPS - 1):
            raise BenchError(f"{messages} messages in {STEPS} steps: the instrument was not in as it should be")
    elif window["traces"] or messages:
        raise BenchError(f"the instrument was not taken out: {messages} messages, {window['traces']}")


def _check_server(server: VllmServer) -> None:
    """That the load was one of decoding, and the ledger is whole. Raises `BenchError`."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        preemptions = parse_page(answer.read(), (_PREEMPTIONS,)).sum(_PREEMPTIONS)
    if preemptions != 0:
        raise BenchError(f"{preemptions} preemptions: the pool is too small for this load")
    with Reader.open(server.ledger()) as reader:
        if failure := reader.sample().instrument_failure:
            raise BenchError(f"the instrument failed: {failure}")


if __name__ == "__main__":
    answering(measure)
