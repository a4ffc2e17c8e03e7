"""Quotas: what each tenant may hold, how its share is weighed, and how each class of request is treated.

Owns the names, defaults and contradictions of what a tenants file can say. Data: it holds no block and reads no file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvledger.catalog import OTHER_TENANT
from kvledger.limits import Group
from kvledger.words import RequestClass
from kvledger_engine.errors import BadQuotas
from kvledger_engine.windows import most_blocks

MAX_PRIORITY = 100
MAX_REUSE_WINDOW = 64
DEFAULT = "default"


def _whole(name: str, value: object, *, least: int, most: int | None = None, optional: bool = False) -> None:
    if value is None and optional:
        return
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most)
    if not fits:
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise BadQuotas(f"{name}={value!r}: use a whole number, {bounds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """What one tenant gets. Raises `BadQuotas`, which names the value.

    `reserved_blocks` are its own: nobody else's requests hold them. `max_blocks` is the most it may hold at once, and
    `max_context` the most tokens of one request, prompt and output together; None = what the engine has.
    `max_waiting` requests may wait at once; None = as many as the engine lets wait. `weight` is its part of the
    block-seconds among those that want more than they get. The higher `priority` goes first and gives way last.
    Tenants of one `share_group` share the blocks of equal prefixes; None = only the tenant's own requests do.
    """

    reserved_blocks: int = 0
    max_blocks: int | None = None
    weight: float = 1.0
    max_context: int | None = None
    max_waiting: int | None = None
    priority: int = 0
    share_group: str | None = None

    def __post_init__(self) -> None:
        _whole("reserved_blocks", self.reserved_blocks, least=0)
        for name in ("max_blocks", "max_waiting"):
            _whole(name, getattr(self, name), least=1, optional=True)
        _whole("max_context", self.max_context, least=2, optional=True)
        _whole("priority", self.priority, least=-MAX_PRIORITY, most=MAX_PRIORITY)
        weighed = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not weighed or not 0 < self.weight < math.inf:
            raise BadQuotas(f"weight={self.weight!r}: use a finite number above 0")
        if self.share_group is not None and not (isinstance(self.share_group, str) and self.share_group):
            raise BadQuotas(f"share_group={self.share_group!r}: use a name, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy:
    """How requests of one class are treated. Raises `BadQuotas`, which names the value.

    `max_context` tokens at most make one request; None = what the engine has. `step_tokens` is how many prompt tokens
    of the whole class one step computes; None = what the step has left. With `may_preempt`, a request that finds no
    blocks takes those of running requests of a lower class. `reuse_window` is among how many of a tenant's oldest
    requests of the class the one with the longest cached prefix goes first; 1 = first come, first served.
    """

    max_context: int | None = None
    step_tokens: int | None = None
    may_preempt: bool = False
    reuse_window: int = 1

    def __post_init__(self) -> None:
        _whole("max_context", self.max_context, least=2, optional=True)
        _whole("step_tokens", self.step_tokens, least=1, optional=True)
        _whole("reuse_window", self.reuse_window, least=1, most=MAX_REUSE_WINDOW)
        if not isinstance(self.may_preempt, bool):
            raise BadQuotas(f"may_preempt={self.may_preempt!r}: use true or false")


CLASS_DEFAULTS = {
    RequestClass.DEFAULT.word: ClassPolicy(),
    RequestClass.INTERACTIVE.word: ClassPolicy(may_preempt=True),
    RequestClass.BATCH.word: ClassPolicy(reuse_window=8),
}
"""What a class is without a word about it, once there are quotas at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What of an engine quotas are checked against."""

    capacity_blocks: int
    cache_groups: tuple[Group, ...]
    max_model_len_tokens: int
    max_num_batched_tokens: int
    max_waiting: int
    max_tenants: int
    chunked_prefill: bool

    def blocks_of(self, tokens: int) -> int:
        """The most blocks that a sequence holds on its way to so many tokens, in all cache groups."""
        return most_blocks(self.cache_groups, tokens, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """All of an engine's tenants and classes. A tenant without a quota of its own has the `default` one, by itself."""

    tenants: dict[str, TenantQuota] = field(default_factory=dict)
    default: TenantQuota = field(default_factory=TenantQuota)
    classes: dict[str, ClassPolicy] = field(default_factory=lambda: dict(CLASS_DEFAULTS))

    def of(self, tenant: str) -> TenantQuota:
        """A tenant's quota."""
        return self.tenants.get(tenant, self.default)

    def policy(self, request_class: str) -> ClassPolicy:
        """How a class is treated."""
        return self.classes.get(request_class) or CLASS_DEFAULTS[request_class]

    @property
    def reserved_blocks(self) -> int:
        """Blocks that are reserved for somebody."""
        return sum(quota.reserved_blocks for quota in self.tenants.values())

    def ceiling_blocks(self, quota: TenantQuota, capacity_blocks: int) -> int:
        """The most blocks a tenant can ever hold: its maximum, and never what is reserved for others."""
        unreserved = capacity_blocks - (self.reserved_blocks - quota.reserved_blocks)
        return unreserved if quota.max_blocks is None else min(quota.max_blocks, unreserved)

    def max_context(self, tenant: str, request_class: str) -> int | None:
        """The most tokens of one request of this tenant and class; None = what the engine has."""
        limits = (self.of(tenant).max_context, self.policy(request_class).max_context)
        return min((limit for limit in limits if limit is not None), default=None)

    def check(self, sizes: Sizes) -> None:
        """Raise `BadQuotas` where quotas contradict each other, or an engine of these sizes."""
        if self.reserved_blocks > sizes.capacity_blocks:
            parts = " + ".join(f"{q.reserved_blocks} ({n})" for n, q in self.tenants.items() if q.reserved_blocks)
            raise BadQuotas(
                f"reserved_blocks add up to {self.reserved_blocks} = {parts}, "
                f"and the pool has {sizes.capacity_blocks}: reserve less, or raise --blocks"
            )
        if len(self.tenants) > sizes.max_tenants:
            raise BadQuotas(
                f"{len(self.tenants)} tenants, and the ledger has columns for {sizes.max_tenants}: name fewer"
            )
        if self.default.reserved_blocks:
            raise BadQuotas(
                f"default: reserved_blocks={self.default.reserved_blocks}: "
                "any number of tenants may come without a name here; reserve blocks for tenants by name"
            )
        for name, quota in self.tenants.items():
            if name == OTHER_TENANT:
                raise BadQuotas(
                    f"tenant {name!r} is where tenants without a column of their own are counted: rename it"
                )
            self._check_tenant(f"tenant {name!r}", quota, sizes)
        self._check_tenant(DEFAULT, self.default, sizes)
        for name in self.classes:
            self._check_class(name, sizes)

    def _check_tenant(self, where: str, quota: TenantQuota, sizes: Sizes) -> None:
        capacity, most = sizes.capacity_blocks, quota.max_blocks
        if most is not None and quota.reserved_blocks > most:
            raise BadQuotas(
                f"{where}: reserved_blocks={quota.reserved_blocks} is more than max_blocks={most}: "
                "it could never hold what is kept for it"
            )
        if most is not None and most > capacity:
            raise BadQuotas(f"{where}: max_blocks={most} of a pool of {capacity}: use at most that, or leave it out")
        if quota.max_waiting is not None and quota.max_waiting > sizes.max_waiting:
            raise BadQuotas(
                f"{where}: max_waiting={quota.max_waiting}, and the engine lets {sizes.max_waiting} wait: "
                "use at most that"
            )
        self._check_context(where, quota, sizes)

    def _check_context(self, where: str, quota: TenantQuota, sizes: Sizes) -> None:
        """One request of the longest context must fit into what the tenant can hold, or it could never be served."""
        ceiling = self.ceiling_blocks(quota, sizes.capacity_blocks)
        if quota.max_context is not None and quota.max_context > sizes.max_model_len_tokens:
            raise BadQuotas(
                f"{where}: max_context={quota.max_context}, and the engine's context is "
                f"{sizes.max_model_len_tokens}: use at most that"
            )
        shortest, said = (
            (2, "") if quota.max_context is None else (quota.max_context, f"max_context={quota.max_context} ")
        )
        needed = sizes.blocks_of(shortest)
        if needed > ceiling:
            others = self.reserved_blocks - quota.reserved_blocks
            raise BadQuotas(
                f"{where}: {said}takes {needed} blocks, and it can hold {ceiling}: max_blocks="
                f"{'none' if quota.max_blocks is None else quota.max_blocks}, and {others} of "
                f"{sizes.capacity_blocks} are reserved for others"
            )

    def _check_class(self, name: str, sizes: Sizes) -> None:
        where = f"class {name!r}"
        if name not in RequestClass.words():
            raise BadQuotas(f"{where}: the classes are {', '.join(RequestClass.words())}")
        policy = self.classes[name]
        longest, step = sizes.max_model_len_tokens, sizes.max_num_batched_tokens
        if policy.max_context is not None and policy.max_context > longest:
            raise BadQuotas(
                f"{where}: max_context={policy.max_context}, and the engine's is {longest}: use at most that"
            )
        if policy.step_tokens is None:
            return
        if policy.step_tokens > step:
            raise BadQuotas(f"{where}: step_tokens={policy.step_tokens}, and a step computes {step}: use at most that")
        whole = policy.max_context or longest
        if not sizes.chunked_prefill and policy.step_tokens < whole:
            raise BadQuotas(
                f"{where}: step_tokens={policy.step_tokens}, and without chunked prefill a prompt of up to {whole} "
                "tokens is computed in one step: use at least that, or a smaller max_context"
            )


def share_scope(quotas: Quotas | None, tenant: str) -> str:
    """Among whom a tenant's prefixes are shared: its share group, else the tenant alone."""
    group = None if quotas is None else quotas.of(tenant).share_group
    return f"tenant:{tenant}" if group is None else f"group:{group}"
