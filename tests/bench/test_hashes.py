"""Measurements begin with every hash in the same state; an engine's keys are salted anew at each start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.pool import LedgerPool
from bench.replay import Replay
from bench.steady import BLOCK_TOKENS, NoCompute, engine
from bench.tmpfs import ledger_directory
from bench.uninstrumented import bare_engine
from kvledger.writer import Ledger
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest

pytestmark = pytest.mark.needs("tmpfs")
CONFIG = EngineConfig(capacity_blocks=64, block_size_tokens=BLOCK_TOKENS)
TOKENS = np.arange(4 * BLOCK_TOKENS, dtype=np.int32)


def keys(ledger: Ledger) -> list[int]:
    """The prefix keys of all blocks that have one."""
    hashes = np.array(ledger.blocks.prefix_hash)
    ledger.close()
    return sorted(hashes[hashes != 0].tolist())


def served(ledger: Ledger, loop: EngineLoop) -> Ledger:
    """After one request."""
    loop.submit(NewRequest(request_id="a", prompt=TOKENS.tolist(), max_tokens=2))
    while loop.has_work:
        loop.step()
    return ledger


def of_the_pool(directory: Path) -> Ledger:
    pool = LedgerPool(directory, 64)
    blocks = pool.take(4)
    pool.index(blocks, TOKENS.reshape(4, BLOCK_TOKENS))
    pool.release(blocks)
    return pool.ledger


def of_a_replay(directory: Path) -> Ledger:
    replay = Replay(directory, capacity_blocks=64, running=2, longest_tokens=256)
    replay.serve(TOKENS)
    return replay.ledger


def unpinned(directory: Path) -> Ledger:
    ledger = Ledger.create(directory, CONFIG.limits())
    return served(ledger, EngineLoop(CONFIG, ledger, NoCompute()))


PINNED: dict[str, Callable[[Path], Ledger]] = {
    "pool": of_the_pool,
    "replay": of_a_replay,
    "engine": lambda directory: served(*engine(directory, CONFIG, NoCompute())),
    "bare engine": lambda directory: served(*bare_engine(directory, CONFIG, NoCompute())),
}


def twice(made: Callable[[Path], Ledger]) -> list[list[int]]:
    """The keys of two that are made alike."""
    found = []
    for _ in range(2):
        with ledger_directory() as directory:
            found.append(keys(made(directory)))
    return found


@pytest.mark.parametrize("name", PINNED)
def test_what_is_measured_has_the_same_keys_in_every_run(name: str) -> None:
    first, second = twice(PINNED[name])
    assert first == second
    assert len(set(first)) == 4


def test_an_engine_of_the_product_has_others_at_each_start() -> None:
    first, second = twice(unpinned)
    assert not set(first) & set(second)
