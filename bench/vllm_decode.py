"""Decode steps of ours and slots of vLLM's in turns: `python -m bench.vllm_decode` in vLLM's environment."""

from __future__ import annotations

import time
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

FULL_ROUNDS, QUICK_ROUNDS, WARM_STEPS = 64, 12, 16
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


def measure(effort: Effort) -> Answer:
    """Microseconds per step of `ours`, `vllm` (its `allocate_slots`) and `vllm append`."""
    lengths = prompt_lengths(trace(AZURE), SEQUENCES)
    asked = prompts(lengths)
    further = WARM_STEPS + STEPS_PER_WINDOW * effort.choose(full=FULL_ROUNDS, quick=QUICK_ROUNDS)
    figures: dict[str, list[float]] = {"ours": [], "vllm": [], "vllm append": []}
    with ledger_directory() as directory:
        ours = Decoding(directory, asked, further_tokens=further)
        theirs = Slots(asked, capacity=ours.capacity_blocks, longest=max(lengths) + further + 2)
        for _ in range(WARM_STEPS):
            ours.step()
            theirs.step()
        settle()
        for turn in effort.rounds(full=FULL_ROUNDS, quick=QUICK_ROUNDS):
            if turn % 2:
                slots = [theirs.step() for _ in range(STEPS_PER_WINDOW)]
                figures["ours"].append(_window(ours))
            else:
                figures["ours"].append(_window(ours))
                slots = [theirs.step() for _ in range(STEPS_PER_WINDOW)]
            for name, nanoseconds in zip(("vllm", "vllm append"), zip(*slots, strict=True), strict=True):
                figures[name].append(sum(nanoseconds) / STEPS_PER_WINDOW / 1e3)
            if ours.held() != theirs.held():
                raise BenchError("the same sequences hold other numbers of blocks in vLLM: not the same work")
        held = sum(ours.held())
        if {ours.free(), theirs.free()} != {ours.capacity_blocks}:
            raise BenchError("not all blocks came back: work was left out")
        ours.close()
    facts = f"prompts of {min(lengths)} to {max(lengths):,} tokens, {sum(lengths) / SEQUENCES:.0f} on average"
    return Answer(
        {name: np.array(values) for name, values in figures.items()},
        (versions(), facts, f"{further + 1:,} tokens drawn of each, {held:,} blocks held at the end"),
    )


def _window(ours: Decoding) -> float:
    began_ns = time.thread_time_ns()
    for _ in range(STEPS_PER_WINDOW):
        ours.step()
    return (time.thread_time_ns() - began_ns) / STEPS_PER_WINDOW / 1e3


if __name__ == "__main__":
    answering(measure)
