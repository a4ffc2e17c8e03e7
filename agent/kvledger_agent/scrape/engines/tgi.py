"""Text Generation Inference, reduced: it reserves a request's worst case up front and counts no blocks. Data only."""

from __future__ import annotations

from kvledger_agent.scrape.profile import EngineProfile, OneName, Semantics, Shape, VersionRange

_NONE = "it is always on; look whether this is TGI's own port"

_family = OneName(prefix="tgi_", remedy=_NONE)

PROFILE = EngineProfile(
    engine="tgi",
    title="Text Generation Inference",
    verified=False,
    default_paths=("/metrics",),
    prefixes=("tgi_",),
    markers=("tgi_queue_size", "tgi_batch_current_size", "tgi_request_count"),
    versions=(VersionRange(name="any"),),
    semantics=Semantics(
        usage_includes_evictable=False,
        sampled_at_finish_only=frozenset({"queue_seconds", "e2e_seconds"}),
    ),
    blind=(
        "blocks in any number (only tokens reserved for the batch), blocks kept for reuse or shared, "
        "waits by cause, time to first token, time between tokens (only a mean per request)"
    ),
    families=(
        _family("running", "batch_current_size", unit="requests", blind="whether the engine works at all"),
        _family("waiting", "queue_size", unit="requests", blind="the queue: stalls"),
        _family("active_tokens", "batch_current_max_tokens", unit="tokens", blind="tokens reserved for the batch"),
        _family(
            "capacity_tokens", "batch_max_total_tokens", unit="tokens", required=False, blind="the budget of tokens"
        ),
        # Counters without `_total`, as the engine writes them; they appear with the first event.
        _family(
            "iterations_total",
            "batch_inference_count",
            unit="steps",
            only={"method": "decode"},
            required=False,
            blind="whether it steps: frozen engines cannot be told",
        ),
        _family(
            "rejections_total",
            "request_failure",
            unit="requests",
            shape=Shape.BY,
            label="err",
            required=False,
            words={"overloaded": "queue_full", "validation": "bad_request", "template": "bad_request"},
            blind="refusals",
        ),
        _family(
            "e2e_seconds",
            "request_duration",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            required=False,
            blind="how long requests take",
        ),
        _family(
            "queue_seconds",
            "request_queue_duration",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            required=False,
            blind="how long requests wait (of those that end)",
        ),
    ),
)
