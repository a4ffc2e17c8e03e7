"""Our sides of the rows against vLLM: prompts made of a trace, the cache fed with them, and a set that decodes."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import conversations, mooncake
from bench.decoding import Decoding, blocks_of
from bench.errors import BenchError
from bench.replay import BLOCK_TOKENS, Replay
from bench.tmpfs import ledger_directory

pytestmark = pytest.mark.needs("tmpfs")
LONGEST = 8 * BLOCK_TOKENS


def mooncake_file(path: Path, requests: list[tuple[int, list[int]]]) -> Path:
    """A trace of (prompt tokens, hash ids)."""
    lines = [
        json.dumps({"timestamp": number, "input_length": length, "output_length": 1, "hash_ids": ids})
        for number, (length, ids) in enumerate(requests)
    ]
    path.write_text("\n".join(lines))
    return path


def test_equal_ids_become_equal_tokens_up_to_the_last_which_is_the_prompts_own(tmp_path: Path) -> None:
    path = mooncake_file(tmp_path / "trace.jsonl", [(1000, [7, 8]), (600, [7, 9]), (512, [7])])
    first, second, third = mooncake.prompts(mooncake.read(path))
    assert [len(tokens) for tokens in (first, second, third)] == [1000, 600, 512]
    assert (first[:512] == second[:512]).all()
    assert (first[512:600] != second[512:600]).mean() > 0.9
    assert (first[:511] == third[:511]).all()
    assert len({int(tokens[-1]) for tokens in (first, second, third)}) == 3
    again = list(mooncake.prompts(mooncake.read(path, 2)))
    assert len(again) == 2
    assert (again[0] == first).all()


def test_a_trace_without_an_id_for_every_block_is_no_load(tmp_path: Path) -> None:
    path = mooncake_file(tmp_path / "trace.jsonl", [(513, [7])])
    with pytest.raises(BenchError, match=r"trace\.jsonl has requests without a hash id for every 512 tokens"):
        mooncake.read(path)


class Model:
    """What a cache of full blocks finds, by the rules alone: an ordered dict of prefixes, the oldest evicted first."""

    def __init__(self, capacity: int, running: int) -> None:
        self._capacity, self._most = capacity, running
        self._running: list[list[bytes | None]] = []
        self._held: dict[bytes, int] = {}
        self._cached: OrderedDict[bytes, None] = OrderedDict()

    def serve(self, prompt: np.ndarray) -> int:
        """Hit tokens of one more request."""
        if len(self._running) == self._most:
            for key in reversed(self._running.pop(0)):
                if key is None:
                    continue
                self._held[key] -= 1
                if not self._held[key]:
                    del self._held[key]
                    self._cached[key] = None
        full, all_blocks = len(prompt) // BLOCK_TOKENS, blocks_of(len(prompt))
        keys: list[bytes] = [prompt[: (i + 1) * BLOCK_TOKENS].tobytes() for i in range(full)]
        hits = 0
        while hits < (len(prompt) - 1) // BLOCK_TOKENS and (keys[hits] in self._held or keys[hits] in self._cached):
            hits += 1
        for key in keys[:hits]:
            self._cached.pop(key, None)
            self._held[key] = self._held.get(key, 0) + 1
        for key in keys[hits:]:
            self._held[key] = 1
        self._running.append([*keys, *[None] * (all_blocks - full)])
        tails = sum(key is None for held in self._running for key in held)
        while len(self._held) + len(self._cached) + tails > self._capacity:
            self._cached.popitem(last=False)
        return hits * BLOCK_TOKENS


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, LONGEST)), min_size=1, max_size=25))
def test_the_replay_finds_what_the_rules_say_and_gives_everything_back(asked: list[tuple[int, int]]) -> None:
    capacity, running = 20, 2
    model = Model(capacity, running)
    with ledger_directory() as directory:
        replay = Replay(directory, capacity_blocks=capacity, running=running, longest_tokens=LONGEST)
        for serial, (family, length) in enumerate(asked):
            prompt = np.arange(length, dtype=np.int32) + family * 1000
            prompt[-1] = 10_000 + serial
            assert replay.serve(prompt) == (model.serve(prompt), blocks_of(length))
        assert replay.free() == capacity
        replay.close()


def test_a_prompt_that_does_not_fit_is_no_measurement() -> None:
    with ledger_directory() as directory:
        replay = Replay(directory, capacity_blocks=2, running=2, longest_tokens=LONGEST)
        with pytest.raises(BenchError, match="a prompt of 64 tokens did not fit"):
            replay.serve(np.zeros(64, np.int32))
        replay.close()


def test_all_prompts_decode_in_every_step_and_hold_what_their_tokens_need() -> None:
    lengths, further = [5, 16, 31, 100], 20
    with ledger_directory() as directory:
        decoding = Decoding(directory, conversations.prompts(lengths), further_tokens=further)
        for step in range(further):
            # The token drawn last is not in the cache yet.
            assert decoding.held() == [blocks_of(length + step) for length in lengths]
            decoding.step()
        assert decoding.free() == decoding.capacity_blocks
        decoding.close()


def test_prompt_lengths_are_spread_over_the_whole_trace(tmp_path: Path) -> None:
    lines = [f"2023-11-16 18:15:{second:02d}.0,{second + 1},3" for second in range(60)]
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    assert conversations.prompt_lengths(path, 4) == [1, 16, 31, 46]
    made = conversations.prompts([3, 5])
    assert [len(prompt) for prompt in made] == [3, 5]
    assert made == conversations.prompts([3, 5])
