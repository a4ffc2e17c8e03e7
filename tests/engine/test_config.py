"""One configuration, checked once: what cannot work is refused by name, with the value and what would do."""

from __future__ import annotations

from typing import Any

import pytest

from kvledger.errors import BadGeometry
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.writer import Ledger
from kvledger_engine.computes import CELL_MODEL, ModelOptions, open_compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"capacity_blocks": 0}, "capacity_blocks=0"),
        ({"block_size_tokens": -1}, "block_size_tokens=-1"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, "max_num_batched_tokens=63"),
        ({"chunked_prefill": False, "max_model_len_tokens": 4096, "max_num_batched_tokens": 2048}, "4096"),
        ({"max_model_len_tokens": 1}, "max_model_len_tokens=1"),
        ({"max_waiting": 0}, "max_waiting=0"),
        ({"max_requests": 100, "max_num_seqs": 64, "max_waiting": 64}, "max_requests=100"),
        ({"admission_watermark_blocks": 1024, "capacity_blocks": 1024}, "admission_watermark_blocks=1024"),
        ({"alert_watermark_ratio": 0.0}, "alert_watermark_ratio=0.0"),
        ({"alert_watermark_ratio": float("nan")}, "alert_watermark_ratio=nan"),
        ({"price_per_hour": -1.0}, "price_per_hour=-1.0"),
        ({"price_per_hour": float("inf")}, "price_per_hour=inf"),
        ({"price_per_hour": float("nan")}, "price_per_hour=nan"),
        ({"reserve_bytes": -1}, "reserve_bytes=-1"),
        ({"capacity_blocks": "many"}, "capacity_blocks='many'"),
        ({"capacity_blocks": True}, "capacity_blocks=True"),
        ({"prefix_caching": 1}, "prefix_caching=1"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(BadConfig, match=named.replace("(", r"\(")):
        EngineConfig(**values)


def test_what_no_ledger_can_hold_is_refused_by_the_ledger() -> None:
    with pytest.raises(BadGeometry, match="engine="):
        EngineConfig(engine="../etc")


def test_a_ledger_can_be_made_from_the_defaults_and_holds_every_table_there_can_be() -> None:
    config = EngineConfig()
    limits = config.limits()
    ledger = Ledger.in_memory(limits)
    assert ledger.limits.max_requests == config.max_num_seqs + config.max_waiting
    longest = -(-config.max_model_len_tokens // config.block_size_tokens)
    assert limits.arena_chunks * limits.chunk_blocks >= config.max_num_seqs * longest


def test_the_reserve_is_never_zero_unless_it_is_said_to_be() -> None:
    assert EngineConfig().limits().reserve_bytes > 0
    assert EngineConfig(reserve_bytes=0).limits().reserve_bytes == 0


def test_the_budget_is_the_cache_and_the_reserve_whose_unknown_parts_are_not_zero() -> None:
    config = EngineConfig(capacity_blocks=10, block_size_tokens=4)
    limits, stated = config.limits(), EngineConfig(reserve_bytes=100).limits()
    opened = open_compute(config, ModelOptions(source=CELL_MODEL)).config.limits()

    assert limits.budget_bytes == 10 * 4 * 8 + limits.reserve_bytes
    assert limits.reserve_bytes == limits.reserve_allocator_bytes == config.token_store_bytes
    assert (limits.reserve_weights_bytes, limits.reserve_activations_bytes) == (None, None)
    assert limits.reserve_communication_bytes == 0, "one process holds the whole model"
    assert (opened.reserve_weights_bytes, opened.reserve_bytes) == (0, limits.reserve_bytes)
    assert (stated.reserve_bytes, stated.reserve_allocator_bytes) == (100, None)
    assert Reader.over(MemorySource(Ledger.in_memory(limits).image)).head.limits == limits
