"""Decode steps of ours and slots of vLLM's in turns: `python -m bench.vllm_decode` in vLLM's environment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.request import RequestStatus

from bench.answers import Answer, answering
from bench.conversations import prompt_lengths, prompts
from bench.decoding import Decoding
from bench.effort import Effort
from bench.errors import BenchError
from bench.tmpfs import ledger_directory
from bench.traces import AZURE, trace
from bench.vllm_manager import Manager, settle, versions
from bench.vllmdecode import SEQUENCES, STEPS_PER_WINDOW

FULL_ROUNDS, QUICK_ROUNDS, WARM_STEPS = 32, 6, 16
_DRAWN = 0


class Slots:
    """vLLM's manager with the same prompts computed, one token drawn of each."""

    def __init__(self, asked: list[list[int]], *, capacity: int, longest: int) -> None:
        self.manager = Manager(capacity, max_model_len_tokens=longest)
        self.requests = [self.manager.request(f"request-{number}", prompt) for number, prompt in enumerate(asked)]
        self._allocate = self.manager.manager.allocate_slots
        for request in self.requests:
            if self.manager.admit(request) != 0:
                raise BenchError("a prompt was not new to vLLM's cache, or did not fit")
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids(_DRAWN)

    def step(self) -> tuple[int, int]:
        """A token for every request: nanoseconds of `allocate_slots`, and of what the tokens add to the requests."""
        self.manager.manager.new_step_starts()
        began_ns = time.thread_time_ns()
        given: list[Any] = [self._allocate(request, 1) for request in self.requests]
        allocated_ns = time.thread_time_ns()
        for request in self.requests:
            request.num_computed_tokens += 1
            request.append_output_token_ids(_DRAWN)
        appended_ns = time.thread_time_ns()
        if None in given:
            raise BenchError("vLLM's pool was too small: give it more blocks")
        return allocated_ns - began_ns, appended_ns - allocated_ns

    def held(self) -> list[int]:
        """Blocks of each request."""
        return [self.manager.held(request) for request in self.requests]

    def free(self) -> int:
        """Give everything back; returns how many blocks can be taken then."""
        for request in self.requests:
            self.manager.manager.free(request)
        return self.manager.available


class Race:
    """Both sides with the same prompts computed and decoded for a while."""

    def __init__(self, directory: Path, asked: list[list[int]], *, further_tokens: int) -> None:
        self.ours = Decoding(directory, asked, further_tokens=further_tokens)
        longest = max(map(len, asked)) + further_tokens + 2
        self.theirs = Slots(asked, capacity=self.ours.capacity_blocks, longest=longest)
        for _ in range(WARM_STEPS):
            self.ours.step()
            self.theirs.step()

    def window(self) -> dict[str, float]:
        """Microseconds per step by name: steps of ours, of theirs, then of theirs and of ours.

        Each side so begins once where it stopped and once behind the other, which has filled the processor's caches;
        the first step of these is told apart, too. Raises `BenchError` if the blocks held differ afterwards.
        """
        (_, warm), slots_cold = self._ours(), self._theirs()
        slots_warm, (cold_first, cold) = self._theirs(), self._ours()
        if self.ours.held() != self.theirs.held():
            raise BenchError("the same sequences hold other numbers of blocks in vLLM: not the same work")
        slots, appends = zip(*slots_cold, *slots_warm, strict=True)
        return {
            "ours": _microseconds(warm + cold, 2 * STEPS_PER_WINDOW),
            "vllm": _microseconds(sum(slots), len(slots)),
            "vllm append": _microseconds(sum(appends), len(appends)),
            "ours first": _microseconds(cold_first),
            "vllm first": _microseconds(slots_cold[0][0]),
        }

    def _ours(self) -> tuple[int, int]:
        """Nanoseconds of the first step, and of all."""
        began_ns = time.thread_time_ns()
        self.ours.step()
        first_ns = time.thread_time_ns()
        for _ in range(STEPS_PER_WINDOW - 1):
            self.ours.step()
        return first_ns - began_ns, time.thread_time_ns() - began_ns

    def _theirs(self) -> list[tuple[int, int]]:
        return [self.theirs.step() for _ in range(STEPS_PER_WINDOW)]

    def free(self) -> None:
        """Raises `BenchError` unless both sides give every block back."""
        if {self.ours.free(), self.theirs.free()} != {self.ours.capacity_blocks}:
            raise BenchError("not all blocks came back: work was left out")


def _microseconds(nanoseconds: int, steps: int = 1) -> float:
    return nanoseconds / steps / 1e3


def measure(effort: Effort) -> Answer:
    """Microseconds per step of `ours`, `vllm` (its `allocate_slots`), `vllm append`, and of first steps of both."""
    lengths = prompt_lengths(trace(AZURE), SEQUENCES)
    further = WARM_STEPS + 2 * STEPS_PER_WINDOW * effort.choose(full=FULL_ROUNDS, quick=QUICK_ROUNDS)
    with ledger_directory() as directory:
        race = Race(directory, prompts(lengths), further_tokens=further)
        settle()
        windows = [race.window() for _ in effort.rounds(full=FULL_ROUNDS, quick=QUICK_ROUNDS)]
        held = sum(race.ours.held())
        race.free()
        race.ours.close()
    facts = f"prompts of {min(lengths)} to {max(lengths):,} tokens, {sum(lengths) / SEQUENCES:.0f} on average"
    return Answer(
        {name: np.array([window[name] for window in windows]) for name in windows[0]},
        (versions(), facts, f"{further + 1:,} tokens drawn of each, {held:,} blocks held at the end"),
    )


if __name__ == "__main__":
    answering(measure)
