"""Our engine while a fixed set of prompts decodes, all of them in every step, with a compute that does nothing.

Owns its ledger; measures nothing.
"""

from __future__ import annotations

from pathlib import Path

from bench.errors import BenchError
from bench.steady import BLOCK_TOKENS, NoCompute, engine
from kvledger.words import CancelCause
from kvledger_engine.config import EngineConfig
from kvledger_engine.messages import NewRequest


def blocks_of(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


class Decoding:
    """All prompts computed and one token drawn of each; `step` draws another, `further_tokens` times at most."""

    def __init__(self, directory: Path, prompts: list[list[int]], *, further_tokens: int) -> None:
        # One more than will be drawn, so that nobody ends.
        most = further_tokens + 2
        longest = max(map(len, prompts)) + most
        self.capacity_blocks = sum(blocks_of(len(prompt) + most) for prompt in prompts)
        config = EngineConfig(
            engine="decoding",
            capacity_blocks=self.capacity_blocks,
            block_size_tokens=BLOCK_TOKENS,
            vocab_size=32_000,
            max_num_seqs=len(prompts),
            max_waiting=len(prompts),
            max_num_batched_tokens=sum(map(len, prompts)),
            max_model_len_tokens=longest,
        )
        self.ledger, self.loop = engine(directory, config, NoCompute())
        self._names = [f"request-{number}" for number in range(len(prompts))]
        asked = zip(self._names, prompts, strict=True)
        refused = self.loop.submit_many(
            [NewRequest(request_id=name, prompt=prompt, max_tokens=most) for name, prompt in asked]
        )
        if refused:
            raise BenchError(f"{len(refused)} prompts were refused: {refused[0].reason}")
        self.step()
        if len(self.loop._scheduler.running) != len(prompts):
            raise BenchError("not all prompts were computed in one step")

    def step(self) -> None:
        """One token for every sequence: schedule, two publications, apply."""
        self.loop.step()

    def held(self) -> list[int]:
        """Blocks of each prompt's sequence, in the order given."""
        slots = [self.loop._requests.slots_of(name).item(0) for name in self._names]
        return [self.loop._cache.held_blocks(slot) for slot in slots]

    def free(self) -> int:
        """End all of them; returns how many blocks can be taken then."""
        self.loop.cancel(self._names, CancelCause.API)
        return self.loop._cache.pool.available_blocks

    def close(self) -> None:
        """Leave the ledger."""
        self.loop.close()
