"""Processes that tests start: writers at full speed, writers that crash at a given store, readers of another user."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from pathlib import Path

from kvledger.errors import LedgerError
from kvledger.layout import CONTROL_INDEX
from kvledger.reader import Reader
from kvledger.record import record
from kvledger.words import Event
from kvledger.writer import Ledger
from tests.ledger.toy import Toy, toy_limits

COUNTERS = ("prefix_queried_tokens_total", "generation_tokens_total", "engine_steps_total")


def mark(ledger: Ledger) -> None:
    """Put the number of the publication into places all over the stats vector."""
    stats = ledger.stats
    for name in ("steps", "waiting"):
        stats.values[stats.gauge(name)] = ledger.seq
    for name in COUNTERS:
        stats.values[stats.counter(name)] = ledger.seq
    stats.values[stats.plan.size - 1] = ledger.seq


def busy(directory: str, seed: str, capacity: str, leak_after: str) -> None:
    """A toy engine at full speed until its input closes. After `leak_after` steps it leaks one block and says which."""
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    limits = toy_limits(int(capacity), engine="busy", max_requests=24)
    with Ledger.create(Path(directory), limits) as ledger:
        toy = Toy(ledger, int(seed))
        print("ready", flush=True)
        steps = 0
        while not stop.is_set():
            steps += 1
            ledger.begin()
            toy.operate(3)
            if steps == int(leak_after):
                leaked = toy.table(toy.live[0])[0] if toy.live else toy.take(0)
                toy.stamp(leaked)
                ledger.blocks.ref_count[leaked] += 1
                print(leaked, flush=True)
            mark(ledger)
            toy.count()
            ledger.end()
        print(ledger.seq, int(ledger.control[CONTROL_INDEX["events_head"]]), flush=True)


def hold(directory: str) -> None:
    """A ledger with a few requests that lives, idle, until its input closes."""
    with Ledger.create(Path(directory), toy_limits(engine="held")) as ledger:
        toy = Toy(ledger)
        for _ in range(5):
            toy.step()
        ledger.publish_now()
        print("ready", flush=True)
        sys.stdin.read()


def stop_working(directory: str) -> None:
    """A ledger of an engine that has work and publishes once, then nothing until its input closes."""
    with Ledger.create(Path(directory), toy_limits(engine="held")) as ledger:
        Toy(ledger).step()
        print("ready", flush=True)
        sys.stdin.read()


def crash(directory: str, seed: str, stores: str) -> None:
    """A toy engine that counts in every publication and kills itself at its n-th store after the start."""
    left = [1 << 62]

    def hook() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger.create(Path(directory), toy_limits(engine="crash"), hook=hook)
    toy, stats = Toy(ledger, int(seed)), ledger.stats
    steps = stats.counter("engine_steps_total")
    tokens = stats.tenant_counter("requests_total", finish_reason="stop")
    wait = stats.histogram("step", phase="model")
    print("ready", flush=True)
    left[0] = int(stores)
    while True:
        ledger.begin()
        toy.operate(3)
        stats.values[steps] += 1
        tokens[ledger.tenant_column("acme")] += 1
        wait.observe(0.02)
        toy.count()
        ledger.end()


def create(directory: str, capacity: str, file_limit: str) -> None:
    """Create a ledger of `capacity` blocks, files limited to so many bytes; say what came of it."""
    if int(file_limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_limit), int(file_limit)))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with Ledger.create(Path(directory), toy_limits(int(capacity)), allow_disk=True) as ledger:
            ledger.event(Event.ARRIVED, 1)
            print("created", flush=True)
    except LedgerError as error:
        print(type(error).__name__, error, flush=True)


def read(path: str) -> None:
    """Read a ledger once; say what came of it."""
    try:
        with Reader.open(Path(path)) as reader:
            sample = reader.sample()
            print(sample.status.value, len(sample.slots), reader.audit().capacity_blocks, flush=True)
    except LedgerError as error:
        print(type(error).__name__, error, flush=True)


def save(path: str, target: str, file_limit: str) -> None:
    """Record a ledger, files limited to so many bytes; say what came of it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_limit), int(file_limit)))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        print("saved", record(Path(path), Path(target)).bytes, flush=True)
    except LedgerError as error:
        print(type(error).__name__, error, flush=True)


if __name__ == "__main__":
    {f.__name__: f for f in (busy, hold, stop_working, crash, create, read, save)}[sys.argv[1]](*sys.argv[2:])
