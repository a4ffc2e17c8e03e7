"""A model of how long a step takes, so that an engine without a device keeps realistic time. Computes no token."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields

import numpy as np

from kvledger.clock import Clock, VirtualClock
from kvledger.views import I32
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.errors import BadConfig

_UNITS_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_TERM = re.compile(r"(?P<name>[a-z]+)=(?P<value>[0-9]+(?:\.[0-9]+)?)(?P<unit>s|ms|us|ns)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """seconds = base + token × prompt tokens computed + seq × sequences decoded."""

    base: float = 0.0
    token: float = 0.0
    seq: float = 0.0

    @classmethod
    def parse(cls, text: str) -> StepTime:
        """Read `base=2ms,token=20us,seq=50us`; terms left out are 0. Raises `BadConfig`."""
        known = {field.name for field in fields(cls)}
        terms: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _TERM.fullmatch(part)
            if match is None or match["name"] not in known or match["name"] in terms:
                raise BadConfig(f"step time {part!r}: use base, token, seq, once each: base=2ms,token=20us,seq=50us")
            terms[match["name"]] = float(match["value"]) / _UNITS_PER_SECOND[match["unit"]]
        return cls(**terms)

    def seconds(self, batch: Batch) -> float:
        """How long a batch takes: a row of one token is a decode, all others are prefill."""
        decodes = int(np.count_nonzero(batch.counts == 1))
        return self.base + self.token * (len(batch.tokens) - decodes) + self.seq * decodes


class TimedCompute:
    """Another compute, stretched to the model's time: slept on a real clock, advanced on a virtual one."""

    def __init__(self, inner: Compute, step_time: StepTime, clock: Clock) -> None:
        self._inner, self._step_time, self._clock = inner, step_time, clock

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`. A compute slower than the model is not slowed further."""
        started_ns = self._clock.now_ns()
        sampled = self._inner.execute(batch)
        wanted_ns = started_ns + round(self._step_time.seconds(batch) * 1e9)
        if isinstance(self._clock, VirtualClock):
            self._clock.advance(max(0, wanted_ns - self._clock.now_ns()))
        else:
            time.sleep(max(0, wanted_ns - self._clock.now_ns()) / 1e9)
        return sampled
