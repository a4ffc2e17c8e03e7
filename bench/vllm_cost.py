"""What the plugin adds to a step of vLLM's own scheduler: `python -m bench.vllm_cost` in vLLM's environment.

One scheduler with made-up outputs; before each window of steps the hooks are put in or taken out, in turns, and what
they have missed is told. Figures are processor time of the thread that schedules: schedule and update_from_output, the
hooks included. What the mirror's process uses beside is a figure of its own.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.answers import Answer, answering
from bench.effort import Effort
from bench.estimate import Windows
from bench.interleave import Window, interleave
from bench.pluginstep import RUNNING, STEPS
from bench.tmpfs import ledger_directory
from bench.vllmenv import version
from kvledger_vllm.attach import attach
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.model import save_tiny_llama
from tests.vllm.toggle import take_out

BLOCKS, BIG_POOL_BLOCKS, FULL_ROUNDS = 40_001, 100_001, 60
SETTLING_STEPS = 40
_WARM_STEPS, _LONGEST_TOKENS, _MANY_REQUESTS = 40, 1800, 1 << 14
_ON_THE_WAY = 16
Part = TypeVar("Part")


class Load:
    """`RUNNING` requests on one scheduler, the same ones for the same seed. `renew`: they come and go all the time."""

    def __init__(self, model: Path, *, renew: bool) -> None:
        self.bare = BareScheduler(
            model, blocks=BLOCKS, seed=1, max_num_seqs=RUNNING, max_num_batched_tokens=8192, asynchronous=True
        )
        self._random, self._renew, self._made, self._left = random.Random(1), renew, 0, 0

    def ready(self, steps: int) -> None:
        """At least so many steps are left in which nobody ends, unless all do all the time."""
        if self._left < steps and not (self._renew and self._made):
            self.bare.drain()
            self.bare.abort(*self.bare.scheduler.requests)
            self._fill()
            self._left = _LONGEST_TOKENS
            self.run(_WARM_STEPS)

    def run(self, steps: int) -> float:
        """Microseconds of processor time that each step's schedule and update took."""
        before = self.bare.control_ns
        for _ in range(steps):
            self._fill()
            self.bare.step()
        self._left -= steps
        if len(self.bare.scheduler.running) < RUNNING - _ON_THE_WAY:
            raise SystemExit(
                f"{len(self.bare.scheduler.running)} requests run, not about {RUNNING}: give it more blocks"
            )
        return (self.bare.control_ns - before) / steps / 1e3

    def _fill(self) -> None:
        drawn = self._random
        while len(self.bare.scheduler.requests) < RUNNING + (16 if self._renew else 0):
            prompt = [drawn.randrange(3, 512) for _ in range(drawn.randrange(60, 200))]
            tokens = drawn.randrange(100, 400) if self._renew else _LONGEST_TOKENS
            self.bare.add(f"cmpl-{self._made:032d}-0-abcdef12", prompt, max_tokens=tokens)
            self._made += 1


class Switched:
    """Windows of one load, with the hooks and without. `mirror_us` is the mirror's processor time, a step."""

    def __init__(self, model: Path, directory: Path, *, renew: bool) -> None:
        self.load = Load(model, renew=renew)
        self.load.ready(STEPS)
        # Who ends while the hooks are out is never told of.
        settings = Settings(directory=directory, engine=f"cost-{renew}", max_requests=_MANY_REQUESTS)
        self._instrument = attach(self.load.bare.scheduler, settings)
        self._hooks, self.mirror_us = self._part(self._instrument.hooks), list[float]()
        self._hooks.remove()

    def without(self) -> float:
        """A window of vLLM alone."""
        self.load.ready(STEPS + SETTLING_STEPS)
        self.load.run(SETTLING_STEPS)
        return self.load.run(STEPS)

    def plugged(self) -> float:
        """A window in which every step is published, once everything has been told."""
        self.load.ready(STEPS + SETTLING_STEPS)
        mirror = self._part(self._instrument.mirror)
        self._hooks.put_in()
        self.load.run(SETTLING_STEPS)
        self._require_applied()
        before_ns = _on_a_processor_ns(mirror.pid)
        figure = self.load.run(STEPS)
        self._require_applied()
        self.mirror_us.append((_on_a_processor_ns(mirror.pid) - before_ns) / STEPS / 1e3)
        self._hooks.remove()
        return figure

    def close(self) -> None:
        """Leave the ledger."""
        self._part(self._instrument.stop)()
        self._part(None if self._instrument.switch.why else True)

    def _require_applied(self) -> None:
        self._part(self._instrument.await_applied() or None)

    def _part(self, part: Part | None) -> Part:
        if part is None:
            raise SystemExit(f"the plugin switched itself off: {self._instrument.switch.why}")
        return part


def _on_a_processor_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def windows(model: Path, directory: Path, rounds: Iterable[int], *, renew: bool) -> tuple[dict[str, Windows], int]:
    """Microseconds a step without and with the plugin in turns, without it once more, which shows what chance adds, and
    of the mirror; and how many requests ran at the end."""
    switched = Switched(model, directory, renew=renew)
    gc.collect()
    gc.freeze()  # as vLLM's own engine core does once it has started
    contenders: dict[str, Window] = {
        "without": switched.without, "with": switched.plugged, "again": switched.without
    }  # fmt: skip
    figures = interleave(rounds, contenders, swap=True)
    switched.close()
    return figures | {"mirror": np.array(switched.mirror_us)}, len(switched.load.bare.scheduler.running)


def ledger_bytes(model: Path, directory: Path) -> int:
    """Size of the ledger of a pool of 100,000 blocks."""
    bare = BareScheduler(model, blocks=BIG_POOL_BLOCKS, max_num_seqs=RUNNING, max_num_batched_tokens=8192)
    instrument = attach(bare.scheduler, Settings(directory=directory, engine="big"))
    assert instrument.ledger is not None, instrument.switch.why
    take_out(bare.scheduler)
    return instrument.ledger.layout.file_bytes


def measure(effort: Effort) -> Answer:
    """Both loads, one after the other."""
    figures, facts = dict[str, Windows](), [f"vLLM {version()}"]
    with ledger_directory() as directory:
        model = directory / "model"
        save_tiny_llama(model)
        for name, full, renew in (("steady", FULL_ROUNDS, False), ("changing", FULL_ROUNDS // 2, True)):
            measured, running = windows(model, directory, effort.rounds(full, 6), renew=renew)
            figures |= {f"{name} {kind}": values for kind, values in measured.items()}
            facts.append(f"{running} requests ran at the end of the {name} load")
        size = ledger_bytes(model, directory)
    return Answer(figures, (*facts, f"the ledger of a pool of {BIG_POOL_BLOCKS - 1:,} blocks is {size / 1e6:.1f} MB"))


if __name__ == "__main__":
    answering(measure)
