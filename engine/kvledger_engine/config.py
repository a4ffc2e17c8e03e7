"""EngineConfig: all that one engine core is told at its start, checked. Owns defaults; reads no file and no flag."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kvledger.limits import Group, Limits
from kvledger.words import PreemptionMode
from kvledger_engine.allocation import Allocation
from kvledger_engine.errors import BadConfig
from kvledger_engine.evict import Eviction
from kvledger_engine.kveviction import Retention
from kvledger_engine.quotas import Quotas, Sizes

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "tuple[Group, ...]": (tuple,),
    "Quotas | None": (Quotas, type(None)),
}
_POSITIVE = (
    "capacity_blocks",
    "block_size_tokens",
    "bytes_per_token",
    "vocab_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_waiting",
    "max_tenants",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine core. Raises `BadConfig`, or `kvledger.errors.BadGeometry` for what no ledger can hold.

    `max_requests` (request slots) defaults to max_num_seqs + max_waiting; `reserve_bytes` to `weights_bytes`, which
    whoever opens a model states, and the size of the token store. `price_per_hour` is what the whole pool costs an
    hour; None = no price. `queue_timeout_seconds` and `run_timeout_seconds` end requests that wait for their first
    block, or run, for longer; None = never. `groups` and `kv_format` are stated by whoever opens a model: its cache
    groups (() = one of full attention) and what their cells are in, "" = there are none. `seed` drives whatever the
    engine draws, but for the salt of its prefix keys. `preemption` is "recompute" or "swap", which keeps the content
    of preempted sequences in `swap_blocks` blocks of host memory. Without `quotas` there is one queue for all, tenants
    are names, and nothing but their prefixes is kept apart. The three `kv_…` change answers, see `kveviction`.
    """

    engine: str = "engine"
    model: str = "cell"
    rank: int = 0
    capacity_blocks: int = 1024
    block_size_tokens: int = 16
    bytes_per_token: int = 8
    vocab_size: int = 256
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len_tokens: int = 4096
    max_waiting: int = 1024
    max_requests: int | None = None
    max_tenants: int = 64
    admission_watermark_blocks: int = 0
    alert_watermark_ratio: float = 0.9
    reserve_bytes: int | None = None
    weights_bytes: int | None = None
    prefix_caching: bool = True
    chunked_prefill: bool = True
    price_per_hour: float | None = None
    queue_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    groups: tuple[Group, ...] = ()
    kv_format: str = ""
    seed: int = 0
    quotas: Quotas | None = None
    eviction: str = Eviction.LRU.value
    preemption: str = PreemptionMode.RECOMPUTE.word
    swap_blocks: int = 0
    kv_eviction: str = Retention().kind
    kv_window_tokens: int | None = None
    kv_sink_blocks: int | None = None
    allocation: str = Allocation.PAGED.value

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_kind(field.name, str(field.type))
        for name in _POSITIVE:
            self._require(name, getattr(self, name) >= 1, "use 1 or more")
        self._check_lengths()
        self._require(
            "admission_watermark_blocks",
            0 <= self.admission_watermark_blocks < self.capacity_blocks,
            f"use 0 or more, and less than capacity_blocks={self.capacity_blocks}",
        )
        self._require("alert_watermark_ratio", 0 < self.alert_watermark_ratio <= 1, "use a ratio above 0, at most 1")
        price = self.price_per_hour
        self._require("price_per_hour", price is None or 0 <= price < math.inf, "use a finite number of 0 or more")
        for name in ("queue_timeout_seconds", "run_timeout_seconds"):
            seconds = getattr(self, name)
            self._require(name, seconds is None or 0 < seconds < math.inf, "use a finite number of seconds above 0")
        for name in ("reserve_bytes", "weights_bytes"):
            size = getattr(self, name)
            self._require(name, size is None or size >= 0, "use 0 or more")
        self._require(
            "max_requests",
            self.request_slots >= self.max_num_seqs + self.max_waiting,
            f"use at least max_num_seqs + max_waiting = {self.max_num_seqs + self.max_waiting}",
        )
        known = [policy.value for policy in Eviction]
        self._require("eviction", self.eviction in known, f"use one of {', '.join(known)}")
        self._check_preemption()
        _ = self.retention  # made to be checked
        self._check_allocation()
        if self.quotas is not None:
            self.quotas.check(self.sizes)
        self.limits()

    def _check_kind(self, name: str, kind: str) -> None:
        value = getattr(self, name)
        fits = isinstance(value, _KINDS[kind]) and (kind == "bool") == isinstance(value, bool)
        self._require(name, fits and value == value, f"it must be of type {kind}")

    def _check_preemption(self) -> None:
        modes = PreemptionMode.words()
        self._require("preemption", self.preemption in modes, f"use one of {', '.join(modes)}")
        swaps = self.preemption == PreemptionMode.SWAP.word
        self._require("swap_blocks", not swaps or self.swap_blocks >= 1, "preemption='swap' needs 1 or more")
        self._require("swap_blocks", swaps or self.swap_blocks == 0, "use 0, or preemption='swap'")

    def _check_lengths(self) -> None:
        self._require("max_model_len_tokens", self.max_model_len_tokens >= 2, "use 2 or more: a prompt and one token")
        # Every running sequence decodes in every step; without this bound one could be left out for ever.
        self._require(
            "max_num_batched_tokens",
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"use at least max_num_seqs={self.max_num_seqs}",
        )
        self._require(
            "max_num_batched_tokens",
            self.chunked_prefill or self.max_num_batched_tokens >= self.max_model_len_tokens,
            "without chunked_prefill a prompt is computed in one step: "
            f"use at least max_model_len_tokens={self.max_model_len_tokens}",
        )

    def _check_allocation(self) -> None:
        known = [kind.value for kind in Allocation]
        self._require("allocation", self.allocation in known, f"use one of {', '.join(known)}")
        if self.allocation == Allocation.PAGED:
            return
        # A baseline shares nothing and forgets nothing: it is there to be compared with.
        self._require("allocation", not self.prefix_caching, "runs cannot be shared: use prefix_caching=False")
        self._require("allocation", not self.swap_blocks, "runs are not swapped: use preemption='recompute'")
        self._require("allocation", self.quotas is None, "runs know no quotas: leave the tenants file out")
        self._require("allocation", not self.retention.evicts, "runs lose no block: use kv_eviction='none'")
        one = len(self.cache_groups) == 1 and not self.cache_groups[0].window_tokens
        self._require("allocation", one, "use a model all of whose layers see everything")
        if self.allocation == Allocation.RESERVE:
            longest = -(-self.max_model_len_tokens // self.block_size_tokens)
            self._require(
                "capacity_blocks", self.capacity_blocks >= longest, f"a run is max_model_len: use at least {longest}"
            )

    def _require(self, name: str, holds: bool, remedy: str) -> None:
        if not holds:
            raise BadConfig(f"{name}={getattr(self, name)!r}: {remedy}")

    @property
    def retention(self) -> Retention:
        """What sequences keep of themselves."""
        return Retention(kind=self.kv_eviction, window_tokens=self.kv_window_tokens, sink_blocks=self.kv_sink_blocks)

    def declared(self) -> list[str]:
        """Clauses for people on options under which this engine is another than its model's."""
        said = [self.retention.said(self.block_size_tokens)] if self.retention.evicts else []
        if self.allocation != Allocation.PAGED:
            said.append(f"allocation {self.allocation}: a baseline of contiguous runs, for comparison only")
        return said

    @property
    def sizes(self) -> Sizes:
        """What quotas are checked against."""
        return Sizes(**{field.name: getattr(self, field.name) for field in fields(Sizes)})

    @property
    def token_store_bytes(self) -> int:
        """What the tokens of all request slots take beside the cache."""
        return 4 * self.request_slots * self.max_model_len_tokens

    @property
    def _whole_reserve_bytes(self) -> int:
        """What was stated, else the parts that are known."""
        return (self.weights_bytes or 0) + self.token_store_bytes if self.reserve_bytes is None else self.reserve_bytes

    @property
    def request_slots(self) -> int:
        """Request slots of the ledger."""
        return self.max_num_seqs + self.max_waiting if self.max_requests is None else self.max_requests

    @property
    def cache_groups(self) -> tuple[Group, ...]:
        """The cache groups of the pool."""
        whole = Group(
            block_size_tokens=self.block_size_tokens,
            block_bytes=self.bytes_per_token * self.block_size_tokens,
            bytes_per_token=self.bytes_per_token,
        )
        return self.groups or (whole,)

    def limits(self) -> Limits:
        """The ledger this engine writes. The arena holds every table there can be at once."""
        block_bytes = self.bytes_per_token * self.block_size_tokens
        table_blocks = -(-self.max_model_len_tokens // self.block_size_tokens)
        itemised = self.reserve_bytes is None
        return Limits(
            engine=self.engine,
            model=self.model,
            rank=self.rank,
            capacity_blocks=self.capacity_blocks,
            max_requests=self.request_slots,
            groups=self.cache_groups,
            max_logical_blocks=self.max_num_seqs * table_blocks * len(self.cache_groups),
            max_tenants=self.max_tenants,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len_tokens=self.max_model_len_tokens,
            budget_bytes=self.capacity_blocks * block_bytes + self._whole_reserve_bytes,
            reserve_bytes=self._whole_reserve_bytes,
            reserve_weights_bytes=self.weights_bytes if itemised else None,
            # One process holds the whole model: nothing is buffered between ranks.
            reserve_communication_bytes=0 if itemised else None,
            reserve_allocator_bytes=self.token_store_bytes if itemised else None,
            alert_watermark_ratio=float(self.alert_watermark_ratio),
            admission_watermark_blocks=self.admission_watermark_blocks,
            prefix_caching=self.prefix_caching,
            kv_eviction=self.kv_eviction,
            allocation=self.allocation,
        )
