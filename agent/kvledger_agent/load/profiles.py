"""What kinds of request arrive: lengths, prefixes and fates as data, and the seeded draws from them. Knows no clock."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from kvledger.words import RequestClass
from kvledger_agent.bounds import above_zero
from kvledger_agent.errors import UsageError
from kvledger_agent.load.arrivals import FINISH, Fate, FateKind, PrefixRun

Range = tuple[int, int]
MIN_PREFIX_TOKENS = 48
"""Three blocks of 16 tokens: below that a prefix would hardly be shared at all."""
MOST_DRAWN, MOST_LENGTH_SCALE = 100_000, 1000
"""Tenants, and prefixes of each, that can be told apart; and a scale that makes a chat as long as a book."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths of one kind of request, drawn log-uniformly between the bounds (inclusive).

    Attributes:
        prompt_tokens: the request's own tokens, those after a system prefix.
        output_tokens: `max_tokens`.
        weight: how often this shape comes, relative to its siblings.
        request_class: sent as `X-Class`.
    """

    prompt_tokens: Range
    output_tokens: Range
    weight: float = 1.0
    request_class: str = RequestClass.DEFAULT.word


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named mix of requests.

    Attributes:
        shapes: kinds of request; empty if a trace gives the lengths.
        prefix_percent: share of requests that begin with one of their tenant's system prefixes.
        prefix_tokens: length of a system prefix, drawn once per prefix.
        disconnect_percent, timeout_percent, reconnect_percent: shares of requests with that fate; together at most 100.
        before_first_token_percent: of the disconnects and reconnects, those before the first token; the others drop at
            a uniformly drawn token of the stream.
        patience_seconds: of a timeout, drawn log-uniformly.
        drop_seconds: from the send to a drop before the first token, drawn log-uniformly; short ones come before the
            first token of a fast endpoint too.
    """

    name: str
    shapes: tuple[Shape, ...] = ()
    prefix_percent: float = 0.0
    prefix_tokens: Range = (64, 320)
    disconnect_percent: float = 0.0
    timeout_percent: float = 0.0
    reconnect_percent: float = 0.0
    before_first_token_percent: float = 33.0
    patience_seconds: tuple[float, float] = (0.02, 2.0)
    drop_seconds: tuple[float, float] = (0.001, 0.5)

    def __post_init__(self) -> None:
        """Raises UsageError for a share outside 0 to 100 percent or fates above 100 percent together."""
        for name in ("prefix_percent", "disconnect_percent", "timeout_percent", "reconnect_percent"):
            value = getattr(self, name)
            if not 0 <= value <= 100:
                raise UsageError(f"{name}={value:g}: give a percentage from 0 to 100")
        fated = self.disconnect_percent + self.timeout_percent + self.reconnect_percent
        if fated > 100:
            raise UsageError(f"disconnects, timeouts and reconnects make {fated} % together: give at most 100 %")


_SHORT = Shape(prompt_tokens=(16, 128), output_tokens=(4, 32), request_class=RequestClass.INTERACTIVE.word)
_LONG = Shape(prompt_tokens=(1024, 4096), output_tokens=(64, 256), request_class=RequestClass.BATCH.word)
_MEDIUM = Shape(prompt_tokens=(32, 512), output_tokens=(16, 128))

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="short", shapes=(_SHORT,)),
        Profile(name="long", shapes=(_LONG,)),
        Profile(name="mixed", shapes=(replace(_SHORT, weight=4.0), _LONG), prefix_percent=50.0),
        Profile(
            name="shared-prefix",
            shapes=(Shape(prompt_tokens=(8, 64), output_tokens=(8, 64)),),
            prefix_percent=100.0,
            prefix_tokens=(256, 1024),
        ),
        Profile(
            name="storm",
            shapes=(_MEDIUM,),
            prefix_percent=50.0,
            disconnect_percent=30.0,
            timeout_percent=10.0,
            reconnect_percent=10.0,
        ),
    )
}
REPLAY = Profile(name="replay", prefix_percent=50.0)
"""What a trace is replayed with if no profile is named: everyone finishes, half the prompts share a prefix."""


class Draws:
    """Seeded draws, each subject from a stream of its own: more disconnects change no length, tenant or prefix."""

    def __init__(
        self, profile: Profile, *, seed: int, tenants: int, prefixes_per_tenant: int, length_scale: float
    ) -> None:
        """Raises UsageError for counts and scales that are not above 0, or beyond reason."""
        above_zero("tenants", tenants, most=MOST_DRAWN)
        above_zero("prefixes_per_tenant", prefixes_per_tenant, most=MOST_DRAWN)
        above_zero("length_scale", length_scale, most=MOST_LENGTH_SCALE)
        self._profile = profile
        self._seed = seed
        self._scale = length_scale
        self._tenants = tuple(f"tenant-{number}" for number in range(tenants))
        self._tenant_weights = _harmonic_weights(tenants)
        self._prefix_weights = _harmonic_weights(prefixes_per_tenant)
        self._shapes, self._tenant, self._prefix, self._fate = (
            random.Random(f"{seed}/{subject}") for subject in ("shape", "tenant", "prefix", "fate")
        )

    def scaled(self, tokens: int) -> int:
        """A length under the length scale, at least 1 token."""
        return max(1, round(tokens * self._scale))

    def shape(self) -> tuple[int, int, str]:
        """(own prompt tokens, output tokens, class) of the next request, scaled."""
        shapes = self._profile.shapes
        (shape,) = self._shapes.choices(shapes, weights=[each.weight for each in shapes])
        prompt_tokens = self.scaled(_log_uniform(shape.prompt_tokens, self._shapes))
        return prompt_tokens, self.scaled(_log_uniform(shape.output_tokens, self._shapes)), shape.request_class

    def tenant(self) -> str:
        """The next request's tenant; the first tenant is twice as busy as the second, three times as the third."""
        return self._tenant.choices(self._tenants, weights=self._tenant_weights)[0]

    def tenant_of(self, content_id: int) -> str:
        """The tenant of a trace's content, the same for the same id: a conversation stays with its tenant."""
        return random.Random(f"{self._seed}/tenant/{content_id}").choices(self._tenants, weights=self._tenant_weights)[
            0
        ]

    def prefix(self, tenant: str) -> PrefixRun | None:
        """One of the tenant's system prefixes, the first one most often; None for a request without one."""
        chance, (prefix_id,) = (
            self._prefix.random(),
            self._prefix.choices(range(len(self._prefix_weights)), weights=self._prefix_weights),
        )
        if chance * 100 >= self._profile.prefix_percent:
            return None
        length = random.Random(f"{self._seed}/prefix/{tenant}/{prefix_id}").randint(*self._profile.prefix_tokens)
        return PrefixRun(tenant, prefix_id, max(MIN_PREFIX_TOKENS, self.scaled(length)))

    def fate(self, output_tokens: int) -> Fate:
        """What the client does with the next request."""
        chance, before_first, where, delay = (self._fate.random() for _ in range(4))
        kind = self._fate_kind(chance * 100)
        if kind is FateKind.FINISH:
            return FINISH
        low, high = self._profile.patience_seconds if kind is FateKind.TIMEOUT else self._profile.drop_seconds
        after_seconds = low * (high / low) ** delay
        mid_stream = before_first * 100 >= self._profile.before_first_token_percent and output_tokens > 1
        if kind is not FateKind.TIMEOUT and mid_stream:
            return Fate(kind=kind, after_tokens=1 + int(where * (output_tokens - 1)))
        return Fate(kind=kind, after_seconds=after_seconds)

    def _fate_kind(self, percent: float) -> FateKind:
        for kind, share in (
            (FateKind.DISCONNECT, self._profile.disconnect_percent),
            (FateKind.TIMEOUT, self._profile.timeout_percent),
            (FateKind.RECONNECT, self._profile.reconnect_percent),
        ):
            if percent < share:
                return kind
            percent -= share
        return FateKind.FINISH


def _harmonic_weights(count: int) -> list[float]:
    return [1 / rank for rank in range(1, count + 1)]


def _log_uniform(bounds: Range, rng: random.Random) -> int:
    low, high = bounds
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
