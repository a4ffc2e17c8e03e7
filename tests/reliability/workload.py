"""A seeded storm for a virtual engine: arrivals, shared prefixes, forks, cancels, reconnects. Plain data, no engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvledger_engine.messages import NewRequest

NS_PER_SECOND = 1_000_000_000
PREFIX_TOKENS = 40
VOCABULARY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request at a virtual time, and when its client gives it up (None: never)."""

    at_ns: int
    request: NewRequest
    cancel_at_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StormShape:
    """Knobs of the storm. Rates in requests per virtual second, shares in 0..1."""

    rate: float = 5.0
    cancel_share: float = 0.35
    reconnect_share: float = 0.3
    fork_share: float = 0.25
    prefix_share: float = 0.7
    tenants: int = 3
    prefixes_per_tenant: int = 2
    prompt_tokens: tuple[int, int] = (4, 120)
    output_tokens: tuple[int, int] = (1, 120)


def storm(seed: int, shape: StormShape = StormShape(), *, until_seconds: float) -> Iterator[Arrival]:
    """Arrivals in order of time. Equal seeds and shapes give equal storms."""
    rng = random.Random(f"{seed}/storm")
    at, serial = 0.0, 0
    again: NewRequest | None = None
    while (at := at + rng.expovariate(shape.rate)) < until_seconds:
        serial += 1
        name = f"r{serial}"
        request = replace_id(again, name) if again is not None else _request(rng, shape, name)
        cancelled = rng.random() < shape.cancel_share
        again = request if cancelled and rng.random() < shape.reconnect_share else None
        delay = rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 4.0)))
        yield Arrival(
            at_ns=int(at * NS_PER_SECOND),
            request=request,
            cancel_at_ns=int((at + delay) * NS_PER_SECOND) if cancelled else None,
        )


def replace_id(request: NewRequest, request_id: str) -> NewRequest:
    """The same request sent again under another id: what a reconnecting client does."""
    return NewRequest(**{**{f: getattr(request, f) for f in request.__struct_fields__}, "request_id": request_id})


def _request(rng: random.Random, shape: StormShape, request_id: str) -> NewRequest:
    tenant = f"tenant-{rng.randrange(shape.tenants)}"
    own = [rng.randrange(VOCABULARY) for _ in range(rng.randint(*shape.prompt_tokens))]
    forks = rng.random() < shape.fork_share
    return NewRequest(
        request_id=request_id,
        prompt=(_prefix(rng, tenant, shape) if rng.random() < shape.prefix_share else []) + own,
        max_tokens=rng.randint(*shape.output_tokens),
        tenant=tenant,
        salt=tenant,
        n=rng.choice((2, 3)) if forks else 1,
        temperature=1.0 if forks else 0.0,
        seed=rng.randrange(1 << 30),
    )


def _prefix(rng: random.Random, tenant: str, shape: StormShape) -> list[int]:
    own = random.Random(f"{tenant}/{rng.randrange(shape.prefixes_per_tenant)}")
    return [own.randrange(VOCABULARY) for _ in range(PREFIX_TOKENS)]
