"""vLLM 0.8 to 0.32. Data only."""

from __future__ import annotations

from kvledger_agent.scrape.profile import EngineProfile, FamilySpec, NameSince, Semantics, Shape, VersionRange

_STATS = "do not start it with --disable-log-stats, which removes every vllm family"
_NO_SWITCH = "nothing switches it on in this release: take a newer one"
_FINISH = {
    "stop": "stop",
    "repetition": "stop",
    "length": "length",
    "abort": "cancelled",
    "error": "engine_error",
}

PROFILE = EngineProfile(
    engine="vllm",
    title="vLLM",
    verified=True,
    default_paths=("/metrics",),
    prefixes=("vllm:",),
    markers=("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    versions=(
        VersionRange(name="0.8", present=("vllm:gpu_cache_usage_perc",), absent=("vllm:kv_cache_usage_perc",)),
        VersionRange(name="0.9", present=("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc")),
        VersionRange(
            name="0.10-0.31",
            present=("vllm:kv_cache_usage_perc",),
            absent=("vllm:gpu_cache_usage_perc", "vllm:num_requests_waiting_by_reason"),
        ),
        VersionRange(
            name="0.32",
            present=("vllm:num_requests_waiting_by_reason",),
            absent=("vllm:gpu_cache_usage_perc",),
        ),
    ),
    semantics=Semantics(
        usage_includes_evictable=False,
        usage_is_exact=True,
        sampled_at_finish_only=frozenset({"queue_seconds", "e2e_seconds"}),
        lease_seconds=480.0,
    ),
    rank_label="engine",
    traces_of_transfers=("vllm:nixl_", "vllm:num_requests_kv_fetch_by_stage", "vllm:kv_offload_", "vllm:mooncake_"),
    blind=(
        "which request holds a block, blocks shared or kept for reuse, requests that ended and still hold blocks, "
        "waits by cause ('capacity' mixes six), clients that gave up, refusals other than of a full queue"
    ),
    families=(
        FamilySpec(
            signal="running",
            names=(NameSince("vllm:num_requests_running"),),
            unit="requests",
            blind="whether the engine works at all: idle holds, stalls and freezes cannot be told",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="waiting",
            names=(NameSince("vllm:num_requests_waiting"),),
            unit="requests",
            blind="the queue: idle holds and stalls cannot be told",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="waiting_by_reason",
            names=(NameSince("vllm:num_requests_waiting_by_reason", since="0.32"),),
            unit="requests",
            shape=Shape.BY,
            label="reason",
            blind="requests that are parked (remote KV, grammar, adapter) look like those that wait for capacity",
            remedy=_NO_SWITCH,
        ),
        FamilySpec(
            signal="usage_ratio",
            names=(NameSince("vllm:kv_cache_usage_perc", since="0.9"), NameSince("vllm:gpu_cache_usage_perc")),
            unit="ratio",
            blind="how full the pool is: idle holds and a usage out of range cannot be told",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="capacity_blocks",
            names=(NameSince("vllm:cache_config_info"),),
            unit="blocks",
            shape=Shape.INFO,
            label="num_gpu_blocks",
            offset=-1.0,
            blind="the pool's size: usage stays a ratio, no count of blocks is known",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="block_size_tokens",
            names=(NameSince("vllm:cache_config_info"),),
            unit="tokens",
            shape=Shape.INFO,
            label="block_size",
            blind="how many tokens a block holds",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="preemptions_total",
            names=(NameSince("vllm:num_preemptions_total"),),
            unit="requests",
            blind="preemptions: a pool that thrashes looks busy",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="prefix_queried_tokens_total",
            names=(
                NameSince("vllm:prefix_cache_queries_total", since="0.9"),
                NameSince("vllm:gpu_prefix_cache_queries_total", since="0.9", until="0.9"),
            ),
            unit="tokens",
            required=False,
            blind="what prefix sharing saves (in 0.8 the family counts blocks, and is not read)",
            remedy="take 0.9 or newer",
        ),
        FamilySpec(
            signal="prefix_hit_tokens_total",
            names=(
                NameSince("vllm:prefix_cache_hits_total", since="0.9"),
                NameSince("vllm:gpu_prefix_cache_hits_total", since="0.9", until="0.9"),
            ),
            unit="tokens",
            required=False,
            blind="what prefix sharing saves (in 0.8 the family counts blocks, and is not read)",
            remedy="take 0.9 or newer",
        ),
        FamilySpec(
            signal="prompt_tokens_total",
            names=(NameSince("vllm:prompt_tokens_total"),),
            unit="tokens",
            blind="whether prompts are computed: a frozen engine cannot be told from one in a long prefill",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="generation_tokens_total",
            names=(NameSince("vllm:generation_tokens_total"),),
            unit="tokens",
            blind="whether tokens come: frozen engines cannot be told",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="finished_total",
            names=(NameSince("vllm:request_success_total"),),
            unit="requests",
            shape=Shape.BY,
            label="finished_reason",
            words=_FINISH,
            blind="how requests end",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="rejections_total",
            names=(NameSince("vllm:admission_rejections_total"),),
            unit="requests",
            shape=Shape.BY,
            label="reason",
            words={"max_num_queued_reqs": "queue_full", "max_num_queued_tokens": "queue_full"},
            required=False,
            blind="requests refused because the queue is full",
            remedy="appears with --max-num-queued-reqs or --max-num-queued-tokens; the queue has no limit without them",
        ),
        FamilySpec(
            signal="iterations_total",
            names=(NameSince("vllm:iteration_tokens_total_count"),),
            unit="steps",
            blind="whether the engine steps",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="transfers",
            names=(NameSince("vllm:num_requests_kv_fetch_by_stage", since="0.32"),),
            unit="requests",
            required=False,
            blind="requests whose KV comes from elsewhere",
            remedy="reported where a KV connector consumes",
        ),
        FamilySpec(
            signal="ttft_seconds",
            names=(NameSince("vllm:time_to_first_token_seconds"),),
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="time to first token",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="itl_seconds",
            names=(
                NameSince("vllm:inter_token_latency_seconds"),
                NameSince("vllm:time_per_output_token_seconds"),
            ),
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="time between tokens",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="e2e_seconds",
            names=(NameSince("vllm:e2e_request_latency_seconds"),),
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="how long requests take",
            remedy=_STATS,
        ),
        FamilySpec(
            signal="queue_seconds",
            names=(NameSince("vllm:request_queue_time_seconds"),),
            unit="seconds",
            shape=Shape.HISTOGRAM,
            blind="how long requests wait (of those that end: one that is stuck never shows)",
            remedy=_STATS,
        ),
    ),
)
