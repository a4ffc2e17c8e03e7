"""Engines that the explorer's tests look at: real cell engines under load, with what a page has to show.

They are the engine's own loop over a real ledger, in a process of its own and without the HTTP server: arrivals are
counted in steps, so that the scene is the same on every machine. `kvledger engine` itself: `test_engine_process.py`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvledger.words import CancelCause
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest
from kvledger_engine.steptime import StepTime, TimedCompute
from tests.children import input_closed

EVIL_TENANT = "![x](http://192.0.2.1/x.png)<img src='http://192.0.2.1/y.png'>"
CAPACITY_BLOCKS = 1600
BURST_REQUESTS, STEPS_PER_CANCEL = 60, 24
PREFIX_TOKENS, LEAK_AFTER_CANCELS = 320, 5
WAVE_REQUESTS = 48
"""Half of a wave is long: the pool runs out, and requests are preempted; half is short: batch slots run out."""


def pressed(directory: str) -> None:
    """More requests than 1,600 blocks can hold: shared prefixes, waits for pool, preemption and batch slots."""
    serve(directory, "pressed", None, steps_per_arrival=3)


def leaking(directory: str) -> None:
    """The same load with a defect: one cancelled request's blocks are never freed, when an agent is there to see it."""
    serve(directory, "leaking", FaultPlan(FaultKind.SKIPPED_FREE, LEAK_AFTER_CANCELS), steps_per_arrival=3)


def vast(directory: str) -> None:
    """A pool of 100,000 blocks, lightly used."""
    serve(directory, "vast", None, steps_per_arrival=4, capacity_blocks=100_000)


def serve(directory: str, name: str, fault: FaultPlan | None, *, steps_per_arrival: int, **options: Any) -> None:
    """Step until the input closes; between steps, requests arrive, and some are cancelled."""
    sizes: dict[str, Any] = {
        "engine": name,
        "capacity_blocks": CAPACITY_BLOCKS,
        "block_size_tokens": 16,
        "max_num_seqs": 48,
        "max_num_batched_tokens": 1024,
        "max_model_len_tokens": 2048,
        "max_waiting": 60,
    }
    config = EngineConfig(**sizes | options)
    cells = CellModel(
        capacity_blocks=config.capacity_blocks,
        block_size_tokens=config.block_size_tokens,
        vocab_size=config.vocab_size,
    )
    ledger = Ledger.create(Path(directory), config.limits(), allow_disk=True)
    loop = EngineLoop(config, ledger, TimedCompute(cells, StepTime(base=0.06), ledger.clock), fault)
    run(loop, input_closed(), steps_per_arrival)
    loop.close()


def run(loop: EngineLoop, stop: threading.Event, steps_per_arrival: int) -> None:
    """The load itself: a burst, then more arrivals than the engine can follow. Says `ready` when it is under way."""
    arrived = steps = 0
    while not stop.is_set():
        for _ in range(BURST_REQUESTS if not arrived else steps % steps_per_arrival == 0):
            loop.submit(request(arrived))
            arrived += 1
        if steps % STEPS_PER_CANCEL == STEPS_PER_CANCEL - 1:
            loop.cancel([f"chat-{max(0, arrived - BURST_REQUESTS + 4)}"], CancelCause.DISCONNECT)
        loop.step()
        steps += 1
        if steps == STEPS_PER_CANCEL:
            print("ready", flush=True)


def request(number: int) -> NewRequest:
    """Waves of long and short requests, some tenants' with a prefix of their own; now and then one that is too long."""
    tenant = EVIL_TENANT if number % WAVE_REQUESTS == WAVE_REQUESTS - 1 else ("acme", "umbrella", "initech")[number % 3]
    prefix = [(7 * i + number % 3) % 256 for i in range(PREFIX_TOKENS)]
    is_long = number % WAVE_REQUESTS < WAVE_REQUESTS // 2
    length = 4000 if number % 41 == 0 else 200 + (37 * number) % 600 if is_long else 40
    return NewRequest(
        request_id=f"chat-{number}",
        prompt=prefix + [(number + 3 * i) % 256 for i in range(length)],
        max_tokens=200 + (53 * number) % 300 if is_long else 60 + (53 * number) % 100,
        tenant=tenant,
        salt=tenant,
        n=1,
        request_class=("default", "interactive", "batch")[number % 3],
        temperature=0.0,
    )


def explorer(*arguments: str) -> None:
    """`kvledger explorer`, without going through the entry points of an installed distribution."""
    import argparse

    from kvledger_dashboards.explorer.command import COMMAND

    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    COMMAND.run(parser.parse_args(arguments))


CHILDREN: dict[str, Callable[..., None]] = {f.__name__: f for f in (pressed, leaking, vast, explorer)}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](*sys.argv[2:])
