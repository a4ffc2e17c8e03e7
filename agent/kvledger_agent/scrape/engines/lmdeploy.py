"""LMDeploy, reduced: queues, counters and a usage that includes what is kept for reuse. Data only."""

from __future__ import annotations

from kvledger_agent.scrape.profile import EngineProfile, OneName, Semantics, Shape, VersionRange

_ON = "do not start it with --disable-metrics"

_family = OneName(prefix="lmdeploy:", remedy=_ON)

PROFILE = EngineProfile(
    engine="lmdeploy",
    title="LMDeploy",
    verified=False,
    default_paths=("/metrics",),
    prefixes=("lmdeploy:",),
    markers=("lmdeploy:num_requests_running", "lmdeploy:gpu_cache_usage_perc"),
    versions=(VersionRange(name="any"),),
    semantics=Semantics(
        usage_includes_evictable=True,
        sampled_at_finish_only=frozenset({"queue_seconds", "e2e_seconds"}),
    ),
    rank_label="engine",
    blind=(
        "blocks in any number, what of the usage is only kept for reuse (a warm idle server is near 100 %, so that no "
        "idle hold can be told), blocks shared, waits by cause, refusals apart from other ends"
    ),
    families=(
        _family("running", "num_requests_running", unit="requests", blind="whether the engine works at all"),
        _family("waiting", "num_requests_waiting", unit="requests", blind="the queue: stalls"),
        _family(
            "elsewhere", "num_api_requests_waiting", unit="requests", required=False, blind="requests before the engine"
        ),
        _family("usage_ratio", "gpu_cache_usage_perc", unit="ratio", blind="how full the pool is"),
        _family("prompt_tokens_total", "prompt_tokens_total", unit="tokens", blind="whether prompts are computed"),
        _family("generation_tokens_total", "generation_tokens_total", unit="tokens", blind="whether tokens come"),
        _family(
            "prefix_queried_tokens_total",
            "prompt_tokens_total",
            unit="tokens",
            required=False,
            blind="what prefix sharing saves",
        ),
        _family(
            "prefix_hit_tokens_total",
            "cached_tokens_total",
            unit="tokens",
            required=False,
            blind="what prefix sharing saves",
        ),
        _family(
            "finished_total",
            "request_success_total",
            unit="requests",
            shape=Shape.BY,
            label="finished_reason",
            required=False,
            # It counts failures as well; what is none of these words is left out.
            words={
                "stop": "stop",
                "length": "length",
                "FINISH": "stop",
                "CANCEL": "cancelled",
                "ResponseType.FINISH": "stop",
                "ResponseType.CANCEL": "cancelled",
                "OUT_OF_MEMORY": "out_of_memory",
                "ResponseType.OUT_OF_MEMORY": "out_of_memory",
            },
            blind="how requests end",
        ),
        _family(
            "ttft_seconds",
            "time_to_first_token_seconds",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="time to first token",
        ),
        _family(
            "itl_seconds",
            "iter_token_latency",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="time between tokens",
        ),
        _family(
            "e2e_seconds",
            "e2e_request_latency_seconds",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="how long requests take",
        ),
        _family(
            "queue_seconds",
            "request_queue_time_seconds",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="how long requests wait (of those that end)",
        ),
    ),
)
