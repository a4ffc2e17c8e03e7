"""CacheMemory: every array that the block side of one engine works on, the ledger's and its own, as kernels see them.

Owns the private arrays; what lies in any of them is the business of those that change it.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from kvledger.views import I64
from kvledger.writer import Ledger
from kvledger_engine.compiled import lives
from kvledger_engine.compiled.arrays import (
    ACTIVE_GAUGE,
    BLOCK_TOKENS,
    CACHED_GAUGE,
    CHUNK_BLOCKS,
    EVICTIONS,
    FREE_GAUGE,
    GROUPS,
    KEY_BITS,
    LIFETIME_ALONE,
    LIFETIME_SHARED,
    NEXT_CONTENT,
    POLICY,
    SETTINGS,
    TENANT_BLOCKS,
    WORDS,
    Arrays,
    handle_of,
)
from kvledger_engine.compiled.index import WAYS
from kvledger_engine.compiled.kernel import prepare
from kvledger_engine.evict import Eviction

_POLICIES = {Eviction.LRU: lives.LRU, Eviction.LFU: lives.LFU, Eviction.PREFIX: lives.PREFIX}


class CacheMemory:
    """The arrays of one ledger's cache. `handle` is what kernels take; `arrays` is the same for everybody else.

    `hash_seed` salts the prefix keys: by default random, and fixed under a virtual clock, since a replay must give the
    same ledger; `key_bits` < 64 shortens them, to force collisions in tests.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        eviction: Eviction = Eviction.LRU,
        key_bits: int = 64,
        hash_seed: int | None = None,
    ) -> None:
        prepare()
        self.ledger, self.limits = ledger, ledger.limits
        seed = hash_seed if hash_seed is not None else 0 if ledger.clock.virtual else secrets.randbits(64)
        self.arrays = Arrays(
            control=ledger.control,
            stats=ledger.stats.array,
            seq=ledger.seq_value.reshape(1),
            now_ns=ledger.now_value.reshape(1),
            charged=ledger.charged_columns,
            **_of_blocks(ledger),
            **_of_slots(ledger),
            **self._private(),
            settings=self._settings(eviction, key_bits),
            seed=np.array([seed], np.uint64),
        )
        self.handle = handle_of(self.arrays)
        self.arrays.words[NEXT_CONTENT] = 1

    def _settings(self, eviction: Eviction, key_bits: int) -> I64:
        limits, stats = self.limits, self.ledger.stats
        settings = np.zeros(SETTINGS, np.int64)
        settings[BLOCK_TOKENS], settings[GROUPS] = limits.groups[0].block_size_tokens, len(limits.groups)
        settings[CHUNK_BLOCKS], settings[KEY_BITS] = limits.chunk_blocks, key_bits
        settings[POLICY] = _POLICIES[eviction]
        settings[FREE_GAUGE], settings[CACHED_GAUGE] = stats.gauge("free_blocks"), stats.gauge("cached_blocks")
        settings[ACTIVE_GAUGE], settings[EVICTIONS] = stats.gauge("active_blocks"), stats.counter("evictions_total")
        settings[TENANT_BLOCKS] = stats.plan.tenant_blocks
        for setting, shared in ((LIFETIME_ALONE, "false"), (LIFETIME_SHARED, "true")):
            settings[setting] = stats.histogram("block_reference_lifetime", shared=shared).span.index
        return settings

    def _private(self) -> dict[str, Any]:
        limits = self.limits
        blocks, slots, groups = limits.capacity_blocks, limits.max_requests, len(limits.groups)
        entries = limits.arena_chunks * limits.chunk_blocks
        bounds = self.ledger.stats.histogram("block_reference_lifetime", shared="false").span.bounds
        return {
            "content": np.zeros(blocks, np.int64),
            "parent": np.zeros(blocks, np.int64),
            "salt": np.zeros(blocks, np.uint64),
            "passed": np.zeros(limits.index_slots // WAYS, np.int32),
            "block_tokens": np.zeros((blocks, limits.groups[0].block_size_tokens), np.int32),
            "chain_sum": np.zeros(slots, np.uint64),
            "chain_content": np.zeros(slots, np.int64),
            "skipped": np.zeros(slots * groups, np.int32),
            "attached_ns": np.zeros(slots, np.int64),
            "lives": np.zeros(blocks, np.uint8),
            "whole_lives": np.zeros(blocks, np.uint8),
            "words": np.zeros(WORDS, np.int64),
            "lifetime_bounds": np.array(bounds),
            # What a kernel answers at the front, room for the eviction order at the end.
            "scratch": np.zeros(entries * (3 + groups) + 2 * blocks, np.int64),
        }


def _of_blocks(ledger: Ledger) -> dict[str, Any]:
    blocks, arena = ledger.blocks, ledger.arena
    return {
        "ref_count": blocks.ref_count,
        "state": blocks.state,
        "group": blocks.group,
        "tenant": blocks.tenant,
        "owner": blocks.owner,
        "prefix_hash": blocks.prefix_hash,
        "filled_tokens": blocks.filled_tokens,
        "allocated_ns": blocks.allocated_ns,
        "changed_seq": blocks.changed_seq,
        "share_clock": blocks.share_clock,
        "share_since_ns": blocks.share_since_ns,
        "index_slot": blocks.index_slot,
        "evict_ticket": blocks.evict_ticket,
        "free_list": ledger.free.list,
        "index_key": ledger.index.key,
        "index_block": ledger.index.block,
        "ring": ledger.evict.ring,
        "chunk": arena.chunk,
        "next_chunk": arena.next,
        "free_chunks": arena.free_chunks,
    }


def _of_slots(ledger: Ledger) -> dict[str, Any]:
    slots = ledger.slots
    return {
        "serial": slots.serial,
        "slot_tenant": slots.tenant,
        "slot_changed": slots.changed_seq,
        "prompt_tokens": slots.prompt_tokens,
        "output_tokens": slots.output_tokens,
        "max_tokens": slots.max_tokens,
        "last_token_ns": slots.last_token_ns,
        "computed_tokens": slots.computed_tokens,
        "own_from_token": slots.own_from_token,
        "peak_blocks": slots.peak_blocks,
        "table_blocks": slots.table_blocks.reshape(-1),
        "first_chunk": slots.first_chunk.reshape(-1),
        "last_chunk": slots.last_chunk.reshape(-1),
    }
