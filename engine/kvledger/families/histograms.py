"""Families of durations and sizes, and their buckets."""

from __future__ import annotations

from kvledger.families.build import histogram
from kvledger.families.family import Family, Label
from kvledger.words import FinishReason, ReleaseCause, StepPhase, TokenKind, WaitCause

_CAUSE = Label("cause", WaitCause.words())
_FINISH = Label("finish_reason", FinishReason.words())

# Waits span five decades: a healthy engine's `step` wait is milliseconds, a queue timeout minutes.
WAIT_BUCKETS = (1e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKEN_GAP_BUCKETS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
ALLOCATION_BUCKETS = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.03, 0.1)
RELEASE_BUCKETS = (1e-5, 1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0, 60.0)
LIFETIME_BUCKETS = (1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
STEP_BUCKETS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BLOCK_BUCKETS = tuple(float(1 << power) for power in range(17))
TOKEN_BUCKETS = tuple(float(1 << power) for power in range(21))

HISTOGRAMS: tuple[Family, ...] = (
    histogram(
        "wait", "Time spent waiting for one cause, once per request and cause.", WAIT_BUCKETS, _CAUSE, per_class=True
    ),
    histogram("time_to_first_block", "Arrival to first block held.", WAIT_BUCKETS, per_class=True),
    histogram("time_to_first_token", "Arrival to first token.", WAIT_BUCKETS, per_class=True),
    histogram("inter_token_latency", "Time between two tokens of one request.", TOKEN_GAP_BUCKETS, per_class=True),
    histogram("request_duration", "Arrival to end of a request.", DURATION_BUCKETS, _FINISH),
    histogram("allocation", "Time inside the allocator for one allocation.", ALLOCATION_BUCKETS),
    histogram(
        "release",
        "End of a request to its last block given back.",
        RELEASE_BUCKETS,
        Label("cause", ReleaseCause.words()),
    ),
    histogram(
        "block_reference_lifetime",
        "Time one reference to a block was held.",
        LIFETIME_BUCKETS,
        Label("shared", ("false", "true")),
    ),
    histogram("step", "Time of one engine step, by phase.", STEP_BUCKETS, Label("phase", StepPhase.words())),
    histogram("request_peak_blocks", "Most blocks a request held at once.", BLOCK_BUCKETS, unit="blocks"),
    histogram(
        "request_tokens",
        "Tokens of a request, by kind.",
        TOKEN_BUCKETS,
        Label("kind", TokenKind.words()),
        unit="tokens",
    ),
)
