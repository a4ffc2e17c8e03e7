"""Processes that tests start: engines of known content that hold their ledger until their input closes."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvledger.clock import VirtualClock
from kvledger.words import CancelCause
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest
from kvledger_engine.steptime import StepTime, TimedCompute
from tests.children import input_closed
from tests.ledger.toy import Toy, toy_limits


def hold(directory: str, engine: str, rank: str) -> None:
    """A toy ledger that lives, idle, until the input closes, and is then closed."""
    with Ledger.create(Path(directory), replace(toy_limits(engine=engine), rank=int(rank)), allow_disk=True) as ledger:
        toy = Toy(ledger)
        for _ in range(5):
            toy.step()
        ledger.publish_now()
        print("ready", flush=True)
        sys.stdin.read()


def work(directory: str) -> None:
    """An engine that serves request after request on the real clock, until the input closes; then it closes."""
    stop = input_closed()
    config = _config("work")
    ledger = Ledger.create(Path(directory), config.limits(), allow_disk=True)
    loop = EngineLoop(config, ledger, TimedCompute(_cells(config), StepTime(base=0.002), ledger.clock))
    loop.submit(_request("first", 40, 8))
    loop.step()
    print("ready", flush=True)
    number = 0
    while not stop.is_set():
        number += 1
        loop.submit(_request(f"work-{number}", 10 + number % 50, 10, tenant=f"t{number % 3}"))
        while loop.has_work:
            loop.step()
            if number % 7 == 0:
                loop.cancel([f"work-{number}"], CancelCause.API)
    loop.close()


def scene(directory: str) -> None:
    """The golden scene: every step, refusal, cancellation, preemption and wait of it at a fixed virtual time."""
    loop, clock = _golden(directory)
    _storm(loop, clock)
    print("ready", flush=True)
    sys.stdin.read()


def page(directory: str) -> None:
    """The engines of the golden page: one that serves many, then, after a line of input, comes into the golden scene.

    The other has nothing to do, on the real clock: a virtual one gives a heartbeat no age.
    """
    idle = _config("idle", capacity_blocks=8, max_tenants=1)
    EngineLoop(idle, Ledger.create(Path(directory), idle.limits(), allow_disk=True), _cells(idle)).submit_many([])
    loop, clock = _golden(directory)
    for number in range(60):
        loop.submit(_request(f"early-{number}", 10 + number % 30, 6, tenant=("acme", "umbrella")[number % 2]))
        while loop.has_work:
            loop.step()
    print("ready", flush=True)
    sys.stdin.readline()
    clock.advance(5_000_000_000)
    _storm(loop, clock)
    print("grown", flush=True)
    sys.stdin.read()


def _golden(directory: str) -> tuple[EngineLoop, VirtualClock]:
    config = _config("golden", capacity_blocks=24, max_num_seqs=6, max_waiting=8, price_per_hour=3.6)
    clock = VirtualClock()
    ledger = Ledger.create(Path(directory), config.limits(), clock=clock, allow_disk=True)
    ledger.tenants.quota_blocks[ledger.tenant_column("acme")] = 32
    return EngineLoop(config, ledger, TimedCompute(_cells(config), StepTime(base=0.02, token=20e-6), clock)), clock


def _storm(loop: EngineLoop, clock: VirtualClock) -> None:
    for number in range(60):
        tenant = ("acme", "umbrella")[number % 2]
        loop.submit(_request(f"{tenant}-{number}", 24 + number % 17, 12 + number % 40, tenant=tenant, n=1 + number % 2))
        loop.step()
        if number % 9 == 4:
            loop.cancel([f"{tenant}-{number - 2}", f"{tenant}-{number}"], CancelCause.DISCONNECT)
        clock.advance(100_000_000)
    loop.submit(_request("too-long", 400, 10))
    loop.submit_many([_request(f"late-{number}", 30, 60, tenant="acme") for number in range(12)])
    for _ in range(3):
        loop.step()
    loop.submit(_request("just-arrived", 30, 10, tenant="umbrella"))


def crawl(directory: str) -> None:
    """An engine whose only step never ends: it has work, and after one publication no heartbeat."""
    config = _config("crawl")
    ledger = Ledger.create(Path(directory), config.limits(), allow_disk=True)
    loop = EngineLoop(config, ledger, _cells(config))
    loop.submit(_request("stuck", 20, 8))
    print("ready", flush=True)
    while sys.stdin.read(1):
        time.sleep(0.01)


def leak(directory: str) -> None:
    """An engine that leaks the blocks of one cancelled request and goes on working until the input closes."""
    stop = input_closed()
    config = _config("leak", prefix_caching=False)
    ledger = Ledger.create(Path(directory), config.limits(), allow_disk=True)
    fault = FaultPlan(FaultKind.SKIPPED_FREE)
    loop = EngineLoop(config, ledger, TimedCompute(_cells(config), StepTime(base=0.005), ledger.clock), fault)
    loop.submit(_request("leaker", 20, 30))
    for _ in range(2):
        loop.step()
    loop.cancel(["leaker"], CancelCause.API)
    loop.submit(_request("others", 20, 8))
    loop.step()
    print("ready", flush=True)
    number = 0
    while not stop.is_set():
        loop.submit(_request(f"others-{number}", 20, 8))
        number += 1
        while loop.has_work:
            loop.step()
    loop.close()


def _config(engine: str, **options: Any) -> EngineConfig:
    sizes: dict[str, Any] = {
        "capacity_blocks": 64,
        "block_size_tokens": 8,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len_tokens": 128,
        "max_waiting": 32,
    }
    return EngineConfig(**sizes | {"engine": engine} | options)


def _cells(config: EngineConfig) -> CellModel:
    return CellModel(
        capacity_blocks=config.capacity_blocks,
        block_size_tokens=config.block_size_tokens,
        vocab_size=config.vocab_size,
    )


def _request(name: str, prompt: int, output: int, *, tenant: str = "acme", n: int = 1) -> NewRequest:
    kinds = ("default", "interactive", "batch")
    return NewRequest(
        request_id=name,
        prompt=[(7 * i) % 256 for i in range(prompt)],
        max_tokens=output,
        tenant=tenant,
        salt=tenant,
        n=n,
        request_class=kinds[len(name) % 3],
        temperature=1.0 if n > 1 else 0.0,
    )


if __name__ == "__main__":
    {f.__name__: f for f in (hold, work, scene, page, crawl, leak)}[sys.argv[1]](*sys.argv[2:])
