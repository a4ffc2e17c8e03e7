"""What arrives and when: one planned request, its fate, and seeded arrival times. Draws no lengths, sends nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvledger.words import RequestClass
from kvledger_agent.bounds import above_zero


class FateKind(StrEnum):
    """What the client means to do with its request."""

    FINISH = "finish"
    DISCONNECT = "disconnect"
    TIMEOUT = "timeout"
    RECONNECT = "reconnect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How the client behaves; a request that ends earlier than its fate ends as the endpoint ended it.

    Attributes:
        kind: finish; disconnect (drop the connection); timeout (lose patience); reconnect (drop it and send the same
            prompt again at once, to its end).
        after_tokens: disconnect and reconnect: drop on this many tokens. 0 means before the first token.
        after_seconds: timeout: the client's patience, from the send. Disconnect and reconnect before the first token:
            drop after this long (or on the first token, should it come sooner). Otherwise None.
    """

    kind: FateKind = FateKind.FINISH
    after_tokens: int = 0
    after_seconds: float | None = None


FINISH = Fate()


@dataclass(frozen=True, slots=True)
class PrefixRun:
    """A run of prompt tokens that several requests share: equal (scope, id) means equal tokens.

    Attributes:
        scope: whose prefix it is: a tenant, or `trace` for the blocks of a trace.
        id: the run within its scope.
        tokens: its length; a shorter run is the beginning of a longer one with the same scope and id.
    """

    scope: str
    id: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One planned request.

    Attributes:
        serial: its number in the plan, from 0; what makes the rest of its prompt its own.
        at_seconds: intended send time, from the start of the run.
        prompt_tokens: length of the whole prompt, the shared prefix included.
        output_tokens: `max_tokens`.
        tenant: sent as `X-Tenant`.
        request_class: sent as `X-Class`, one of `kvledger.words.RequestClass`.
        prefix: the shared runs the prompt begins with, in order; None if it shares nothing.
        fate: what the client does with it.
    """

    serial: int
    at_seconds: float
    prompt_tokens: int
    output_tokens: int
    tenant: str
    request_class: str = RequestClass.DEFAULT.word
    prefix: tuple[PrefixRun, ...] | None = None
    fate: Fate = FINISH


def poisson_times(rate_per_second: float, rng: random.Random) -> Iterator[float]:
    """Endless arrival times in seconds of a Poisson process: independent exponential gaps of mean 1 / rate.

    Raises:
        UsageError: the rate is out of bounds.
    """
    above_zero("rate_per_second", rate_per_second)
    at_seconds = 0.0
    while True:
        at_seconds += rng.expovariate(rate_per_second)
        yield at_seconds


def burst_times(rate_per_second: float, burst: int, rng: random.Random) -> Iterator[float]:
    """Endless arrival times in seconds of bursts of `burst` requests at one instant; the mean rate stays the same.

    The bursts themselves form a Poisson process of rate / burst; a burst of 1 is `poisson_times`.

    Raises:
        UsageError: the rate or the burst is out of bounds.
    """
    above_zero("burst", burst)
    for at_seconds in poisson_times(rate_per_second / burst, rng):
        for _ in range(burst):
            yield at_seconds
