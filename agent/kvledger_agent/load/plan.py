"""The plan of a run: parameters, and the arrivals that follow from them alone. Sends nothing."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile

from kvledger_agent.bounds import above_zero, zero_or_more
from kvledger_agent.errors import UsageError
from kvledger_agent.load.arrivals import Arrival, PrefixRun, burst_times
from kvledger_agent.load.profiles import REPLAY, Draws, Profile
from kvledger_agent.load.tokens import DEFAULT_IDS_BELOW, PromptAs, check_ids_below
from kvledger_agent.load.traces import MOONCAKE_BLOCK_TOKENS, Trace, TraceRow

MOST_IN_FLIGHT = 1_000_000
"""Each is an open file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How each request is made.

    Attributes:
        model: name sent in the body; None asks the endpoint for the first one it serves.
        prompt_as: token ids, or text for endpoints that refuse arrays.
        token_ids_below: prompt token ids are in [1, this).
        patience_seconds: a request without an end after this long is given up and counted as a timeout.
        connect_seconds: limit for the connection alone.
        ignore_eos: ask for exactly `max_tokens` tokens (vLLM's and SGLang's extension; not sent when False).
        ask_usage: ask for token counts in the stream; switch off for endpoints that refuse `stream_options`.
    """

    model: str | None = None
    prompt_as: PromptAs = PromptAs.TOKENS
    token_ids_below: int = DEFAULT_IDS_BELOW
    patience_seconds: float = 120.0
    connect_seconds: float = 10.0
    ignore_eos: bool = False
    ask_usage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Everything a run is determined by; equal plans give equal arrivals, prompts and fates.

    Attributes:
        profile: lengths, prefixes and fates; with a trace, prefixes and fates only.
        seed: of every draw.
        rate_per_second: mean arrival rate; not used with a trace.
        burst: requests that arrive at one instant; not used with a trace.
        duration_seconds: arrivals end there; None: no such limit (the trace or `requests` must end the run).
        requests: number of arrivals; None: no such limit.
        tenants, prefixes_per_tenant: the population.
        length_scale: multiplies all lengths, a trace's blocks too.
        time_scale: multiplies a trace's times; 0.1 is ten times as fast.
        trace: recorded times and lengths to replay.
        max_in_flight: arrivals above this many open requests are dropped and counted.
        drain_seconds: how long open requests may still take when the arrivals are over; then they are cut.
        options: how each request is made.
    """

    profile: Profile = REPLAY
    seed: int = 0
    rate_per_second: float = 10.0
    burst: int = 1
    duration_seconds: float | None = None
    requests: int | None = None
    tenants: int = 4
    prefixes_per_tenant: int = 4
    length_scale: float = 1.0
    time_scale: float = 1.0
    trace: Trace | None = None
    max_in_flight: int = 2048
    drain_seconds: float = 10.0
    options: RequestOptions = field(default_factory=RequestOptions)

    def __post_init__(self) -> None:
        """Raises UsageError for a plan that cannot be run or would never end."""
        if self.trace is None and not self.profile.shapes:
            raise UsageError(f"profile {self.profile.name} has no lengths of its own: give a trace")
        if self.trace is None and self.duration_seconds is None and self.requests is None:
            raise UsageError("nothing ends this run: give a duration, a number of requests, or a trace")
        for name in ("time_scale", "duration_seconds", "requests"):
            if (value := getattr(self, name)) is not None:
                above_zero(name, value)
        above_zero("max_in_flight", self.max_in_flight, most=MOST_IN_FLIGHT)
        zero_or_more("drain_seconds", self.drain_seconds)
        above_zero("patience_seconds", self.options.patience_seconds)
        check_ids_below(self.options.token_ids_below)
        next(self.arrivals(), None)  # rate, burst, population and scales are checked by those who use them

    def arrivals(self) -> Iterator[Arrival]:
        """The planned requests in order of time, the same ones on every call."""
        draws = Draws(
            self.profile,
            seed=self.seed,
            tenants=self.tenants,
            prefixes_per_tenant=self.prefixes_per_tenant,
            length_scale=self.length_scale,
        )
        found = self._drawn(draws) if self.trace is None else self._replayed(draws, self.trace)
        if self.duration_seconds is not None:
            end_seconds = self.duration_seconds
            found = takewhile(lambda arrival: arrival.at_seconds < end_seconds, found)
        return islice(found, self.requests)

    def in_words(self) -> str:
        """Seed, what is sent, how fast and until when: one line for people."""
        trace, ends = self.trace, []
        what = f"profile {self.profile.name}, {self.rate_per_second:g} requests/s"
        if trace is not None:
            what = f"trace {trace.name} ({len(trace.rows):,} requests), time × {self.time_scale:g}"
        if self.duration_seconds is not None:
            ends.append(f"for {self.duration_seconds:g} s")
        if self.requests is not None:
            ends.append(f"at most {self.requests:,} requests")
        return ", ".join([f"seed {self.seed}", what, *ends])

    def parameters(self) -> dict[str, object]:
        """All that determines the run as plain data, for the report; a trace by name, format and size."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        trace = self.trace
        plain["trace"] = trace and {"name": trace.name, "format": trace.format, "requests": len(trace.rows)}
        plain["profile"] = dataclasses.asdict(self.profile)
        plain["options"] = dataclasses.asdict(self.options)
        return plain

    def _drawn(self, draws: Draws) -> Iterator[Arrival]:
        times = burst_times(self.rate_per_second, self.burst, random.Random(f"{self.seed}/times"))
        for serial, at_seconds in enumerate(times):
            own_tokens, output_tokens, request_class = draws.shape()
            tenant = draws.tenant()
            prefix = draws.prefix(tenant)
            yield Arrival(
                serial=serial,
                at_seconds=at_seconds,
                prompt_tokens=own_tokens + (prefix.tokens if prefix else 0),
                output_tokens=output_tokens,
                tenant=tenant,
                request_class=request_class,
                prefix=(prefix,) if prefix else None,
                fate=draws.fate(output_tokens),
            )

    def _replayed(self, draws: Draws, trace: Trace) -> Iterator[Arrival]:
        for serial, row in enumerate(trace.rows):
            prompt_tokens, output_tokens = draws.scaled(row.prompt_tokens), draws.scaled(row.output_tokens)
            tenant, prefix = _content_of(row, draws, prompt_tokens)
            yield Arrival(
                serial=serial,
                at_seconds=row.at_seconds * self.time_scale,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                tenant=tenant,
                prefix=prefix,
                fate=draws.fate(output_tokens),
            )


def _content_of(row: TraceRow, draws: Draws, prompt_tokens: int) -> tuple[str, tuple[PrefixRun, ...] | None]:
    """(tenant, shared runs) of a trace's request; the runs take up at most its own length.

    Recorded block ids are shared across tenants as they were recorded. The first block is common to nearly all of a
    Mooncake trace, so the second one tells conversations apart and decides the tenant.
    """
    if row.hash_ids:
        block_tokens = draws.scaled(MOONCAKE_BLOCK_TOKENS)
        runs = tuple(PrefixRun("trace", hash_id, block_tokens) for hash_id in row.hash_ids)
        return draws.tenant_of(row.hash_ids[min(1, len(row.hash_ids) - 1)]), runs
    tenant = draws.tenant()
    prefix = draws.prefix(tenant)
    if prefix is None or prompt_tokens < 2:
        return tenant, None
    return tenant, (dataclasses.replace(prefix, tokens=min(prefix.tokens, prompt_tokens - 1)),)
