"""TensorRT-LLM behind trtllm-serve, from about 1.3 with its KV gauges. Data only."""

from __future__ import annotations

import math

from kvledger_agent.scrape.profile import EngineProfile, OneName, Semantics, Shape, VersionRange

_ITERATIONS = "set enable_iter_perf_stats: true, and take 1.3 or newer"
_REQUESTS = "set return_perf_metrics: true"
_FEW, _GAUGES = "<1.3", ">=1.3"

_family = OneName(prefix="trtllm_", remedy=_ITERATIONS, since=_GAUGES)
_always = OneName(prefix="trtllm_", remedy=_REQUESTS)

PROFILE = EngineProfile(
    engine="tensorrt_llm",
    title="TensorRT-LLM",
    verified=False,
    default_paths=("/prometheus/metrics",),
    prefixes=("trtllm_",),
    markers=("trtllm_kv_cache_max_blocks", "trtllm_kv_cache_utilization", "trtllm_request_success_total"),
    versions=(
        # With its iteration statistics off, a newer release has none of its gauges, but these counters.
        VersionRange(
            name=_FEW,
            absent=("trtllm_kv_cache_max_blocks", "trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
        ),
        VersionRange(name=_GAUGES),
    ),
    semantics=Semantics(
        usage_includes_evictable=False,
        stale_when_idle_seconds=math.inf,
        sampled_at_finish_only=frozenset(
            {
                "queue_seconds",
                "e2e_seconds",
                "ttft_seconds",
                "prompt_tokens_total",
                "generation_tokens_total",
            }
        ),
    ),
    blind=(
        "which request holds a block, blocks shared, free blocks apart from those kept for reuse, whether an idle "
        "engine's last numbers are still true, waits by cause, refusals by reason"
    ),
    families=(
        _family("capacity_blocks", "kv_cache_max_blocks", unit="blocks", blind="the pool's size"),
        _family("active_blocks", "kv_cache_used_blocks", unit="blocks", blind="blocks in use: idle holds"),
        # Blocks kept for reuse are free to its eviction policy: the two are not told apart.
        _family("available_blocks", "kv_cache_free_blocks", unit="blocks", blind="blocks that can be had"),
        _family("block_size_tokens", "kv_cache_tokens_per_block", unit="tokens", blind="how many tokens a block holds"),
        _family(
            "usage_ratio",
            "kv_cache_utilization",
            unit="ratio",
            blind="how full the pool is",
        ),
        _family("running", "num_requests_running", unit="requests", blind="whether the engine works at all"),
        _family("waiting", "num_requests_waiting", unit="requests", blind="the queue: stalls"),
        _family("elsewhere", "num_paused_requests", unit="requests", required=False, blind="requests that are paused"),
        _family("iterations_total", "kv_cache_gen_alloc_blocks_total", unit="steps", required=False, blind="progress"),
        _family("prompt_tokens_total", "prompt_tokens_total", unit="tokens", remedy=_REQUESTS, blind="prompts"),
        _family("generation_tokens_total", "generation_tokens_total", unit="tokens", remedy=_REQUESTS, blind="tokens"),
        _family(
            "prefix_queried_tokens_total",
            "prompt_tokens_total",
            unit="tokens",
            remedy=_REQUESTS,
            required=False,
            blind="what prefix sharing saves",
        ),
        _family(
            "prefix_hit_tokens_total",
            "prompt_cached_tokens_total",
            unit="tokens",
            remedy=_REQUESTS,
            required=False,
            blind="what prefix sharing saves",
        ),
        _always(
            "finished_total",
            "request_success_total",
            unit="requests",
            shape=Shape.BY,
            label="finished_reason",
            words={"stop": "stop", "length": "length", "cancelled": "cancelled"},
            blind="how requests end",
        ),
        _always(
            "ttft_seconds",
            "time_to_first_token_seconds",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="time to first token",
        ),
        _always(
            "e2e_seconds",
            "e2e_request_latency_seconds",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="how long requests take",
        ),
        _always(
            "queue_seconds",
            "request_queue_time_seconds",
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="how long requests wait (of those that end; the least bound is 0.3 s)",
        ),
    ),
)
