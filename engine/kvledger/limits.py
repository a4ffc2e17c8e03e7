"""Limits: what one ledger is for and how much it can hold. Validated once; owns no bytes and does no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvledger.errors import BadGeometry

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
MAX_CAPACITY_BLOCKS = 1 << 26
MAX_REQUESTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One cache group: layers that share block tables.

    `block_bytes` is the size of one block over all the group's layers; 0 where the engine stores no bytes. Of a
    sequence the last `window_tokens` are kept, 0 = all of them, and beside a window the first `sink_tokens`.
    """

    name: str = "full"
    block_size_tokens: int = 16
    block_bytes: int = 0
    bytes_per_token: int = 0
    window_tokens: int = 0
    sink_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Identity and fixed sizes of one ledger (one engine-core process, one pool).

    Raises `BadGeometry` with the offending value. `max_logical_blocks` bounds the sum of block-table lengths over
    live requests, shared blocks counted once per table. `budget_bytes` is all memory that the cache was planned in: its
    blocks, and the reserve, which is `reserve_bytes` (both 0 where unknown). `reserve_..._bytes` are its parts as far
    as the engine knows them; None is unknown, and 0 is nothing. `unreported` are counters and histograms of the
    catalogue that this writer cannot tell: to a reader it has none of them, instead of ones that stay 0. `kv_eviction`
    is `none` where a sequence keeps all that its model would see, else what the engine was told to drop, at the price
    of other answers. `allocation` is how blocks are placed: `paged`, or one of the contiguous baselines.
    """

    engine: str
    capacity_blocks: int
    max_requests: int
    model: str = "unknown"
    rank: int = 0
    pool: str = "gpu"
    groups: tuple[Group, ...] = field(default_factory=lambda: (Group(),))
    max_logical_blocks: int = 0
    chunk_blocks: int = 64
    max_pins: int = 0
    max_tenants: int = 64
    event_records: int = 1 << 15
    summary_records: int = 1 << 12
    peak_records: int = 128
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len_tokens: int = 0
    budget_bytes: int = 0
    reserve_bytes: int = 0
    reserve_weights_bytes: int | None = None
    reserve_activations_bytes: int | None = None
    reserve_communication_bytes: int | None = None
    reserve_allocator_bytes: int | None = None
    alert_watermark_ratio: float = 0.9
    admission_watermark_blocks: int = 0
    prefix_caching: bool = True
    kv_eviction: str = "none"
    allocation: str = "paged"
    unreported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_identity()
        self._check_range("capacity_blocks", 1, MAX_CAPACITY_BLOCKS)
        self._check_range("max_requests", 1, MAX_REQUESTS)
        self._check_range("chunk_blocks", 1, 1 << 16)
        self._check_range("max_tenants", 1, 1 << 12)
        for name in ("event_records", "summary_records", "peak_records"):
            self._check_range(name, 2, 1 << 26)
        if not 1 <= len(self.groups) <= 16:
            raise BadGeometry(f"groups={len(self.groups)}: a ledger has 1 to 16 cache groups")
        for group in self.groups:
            if not 1 <= group.block_size_tokens <= 1 << 20:
                raise BadGeometry(
                    f"block_size_tokens={group.block_size_tokens} of group {group.name!r}: use 1 to {1 << 20}"
                )
            if group.sink_tokens and (not group.window_tokens or group.sink_tokens % group.block_size_tokens):
                raise BadGeometry(
                    f"sink_tokens={group.sink_tokens} of group {group.name!r}: use whole blocks of "
                    f"{group.block_size_tokens}, beside a window"
                )

    def _check_identity(self) -> None:
        for name in ("engine", "pool"):
            value = getattr(self, name)
            if not NAME.fullmatch(value):
                raise BadGeometry(f"{name}={value!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
        if self.rank < 0:
            raise BadGeometry(f"rank={self.rank}: use 0 or more")

    def _check_range(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise BadGeometry(f"{name}={value}: use {low} to {high}")

    @property
    def arena_chunks(self) -> int:
        """Chunks in the block-table arena: enough for `max_logical_blocks`, one part-filled chunk per table beside."""
        logical = self.max_logical_blocks or 4 * self.capacity_blocks
        return -(-logical // self.chunk_blocks) + self.max_requests * len(self.groups)

    @property
    def pin_records(self) -> int:
        """Entries in the pin table."""
        return self.max_pins or max(256, min(self.capacity_blocks, 1 << 16))

    @property
    def index_slots(self) -> int:
        """Slots of the open-addressing prefix index: a power of two, at most half full."""
        return 1 << max(4, (2 * self.capacity_blocks - 1).bit_length())

    @property
    def eviction_slots(self) -> int:
        """Slots of the eviction ring: a power of two, at least twice the blocks, so that compaction is rare."""
        return self.index_slots

    @property
    def tenant_columns(self) -> int:
        """Named tenants, plus the last column, into which all others are folded."""
        return self.max_tenants + 1
