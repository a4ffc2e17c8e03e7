"""What the plugin adds to a step of vLLM's own scheduler: `python -m bench.vllm_cost` in vLLM's environment.

Two schedulers of one process get the same requests and the same made-up outputs, one of them with the plugin's hooks;
windows of steps are taken in turns. Figures are processor time of the thread that schedules: schedule and
update_from_output, the hooks included. Prints JSON; exit status 1 when a bar is missed.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.effort import effort_of
from bench.estimate import estimate
from bench.interleave import Window, interleave
from bench.machine import this_machine
from kvledger_vllm.attach import attach
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.model import save_tiny_llama

RUNNING, BLOCKS, BIG_POOL_BLOCKS = 256, 20_001, 100_001
STEPS = 10
ADDED_BAR_US, SHARE_BAR, LEDGER_BAR_BYTES = 100.0, 0.03, 32 << 20
_WARM_STEPS = 40


class Load:
    """`RUNNING` requests on one scheduler, always the same ones for the same seed; `renew` replaces those that end."""

    def __init__(self, model: Path, *, renew: bool) -> None:
        self.bare = BareScheduler(
            model, blocks=BLOCKS, seed=1, max_num_seqs=RUNNING, max_num_batched_tokens=8192, asynchronous=True
        )
        self._random, self._renew, self._made = random.Random(1), renew, 0

    def warm(self) -> None:
        """Until all requests decode."""
        self._fill()
        for _ in range(_WARM_STEPS):
            self.bare.step()

    def window(self) -> float:
        """Microseconds of processor time that a step's schedule and update took."""
        self._fill()
        before = self.bare.control_ns
        for _ in range(STEPS):
            self.bare.step()
        return (self.bare.control_ns - before) / STEPS / 1e3

    def _fill(self) -> None:
        drawn = self._random
        while len(self.bare.scheduler.requests) < RUNNING + (16 if self._renew else 0):
            prompt = [drawn.randrange(3, 512) for _ in range(drawn.randrange(60, 200))]
            tokens = drawn.randrange(100, 400) if self._renew else 1800
            self.bare.add(f"cmpl-{self._made:032d}-0-abcdef12", prompt, max_tokens=tokens)
            self._made += 1


def measure(model: Path, directory: Path, rounds: Iterable[int], *, renew: bool) -> dict[str, Any]:
    """Windows of a scheduler without and of one with the plugin, in turns."""
    without, hooked = Load(model, renew=renew), Load(model, renew=renew)
    instrument = attach(hooked.bare.scheduler, Settings(directory=directory, engine=f"cost-{renew}"))
    for load in (without, hooked):
        load.warm()
    gc.collect()
    gc.freeze()  # as vLLM's own engine core does once it has started
    contenders: dict[str, Window] = {"without": without.window, "with": hooked.window}
    figures = interleave(rounds, contenders, swap=True)
    if not instrument.switch.on or instrument.ledger is None:
        raise SystemExit(f"the plugin switched itself off: {instrument.switch.why}")
    added = figures["with"] - figures["without"]
    running = len(hooked.bare.scheduler.running), len(without.bare.scheduler.running)
    instrument.ledger.close()
    return {
        "running": running,
        "without_us": estimate(figures["without"]).document(),
        "added_us": estimate(added).document(),
        "share": estimate(added / float(np.median(figures["without"]))).document(),
    }


def ledger_bytes(model: Path, directory: Path) -> int:
    """Size of the ledger of a pool of 100,000 blocks."""
    bare = BareScheduler(model, blocks=BIG_POOL_BLOCKS, max_num_seqs=RUNNING, max_num_batched_tokens=8192)
    instrument = attach(bare.scheduler, Settings(directory=directory, engine="big"))
    assert instrument.ledger is not None, instrument.switch.why
    instrument.ledger.close()
    return instrument.ledger.layout.file_bytes


def main(arguments: list[str]) -> int:
    """Measure and print. The exit status."""
    effort = effort_of(arguments, __doc__)
    directory = Path(tempfile.mkdtemp(prefix="kvledger-cost-", dir="/dev/shm"))
    try:
        model = directory / "model"
        save_tiny_llama(model)
        machine = this_machine()
        steady = measure(model, directory, effort.rounds(60, 12), renew=False)
        changing = measure(model, directory, effort.rounds(30, 12), renew=True)
        size = ledger_bytes(model, directory)
    finally:
        shutil.rmtree(directory)
    met = {
        "added": steady["added_us"]["value"] <= ADDED_BAR_US,
        "share": steady["share"]["value"] <= SHARE_BAR,
        "ledger": size <= LEDGER_BAR_BYTES,
    }
    document = {
        "machine": dataclasses.asdict(machine),
        "steady": steady,
        "changing": changing,
        "ledger_bytes": size,
        "met": met,
    }
    print(json.dumps(document, indent=1))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
