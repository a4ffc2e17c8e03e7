"""SGLang: up to 0.5.10, and from 0.5.12. Data only. Its load snapshot is made a page by `scrape.extras`."""

from __future__ import annotations

from kvledger_agent.scrape.profile import EngineProfile, FamilySpec, NameSince, Semantics, Shape, VersionRange

_ENABLE = "start it with --enable-metrics (or read /v1/loads, which needs no flag)"
_NEWER = "take 0.5.12 or newer"
_LOADS, _OLD, _NEW = "any (/v1/loads)", "<=0.5.10", ">=0.5.12"
"""The first is no release: the load snapshot alone, where metrics are not switched on."""


def _gauge(
    signal: str, *names: str, unit: str, blind: str, load: str | None = None, required: bool = True, ranked: bool = True
) -> FamilySpec:
    """A family of numbers that every version has; `load` is its name in the load snapshot, which comes second."""
    snapshot = () if load is None else (NameSince(f"sglang_{load}"),)
    return FamilySpec(
        signal=signal,
        names=(*(NameSince(f"sglang:{name}", since=_OLD) for name in names), *snapshot),
        unit=unit,
        blind=blind,
        remedy=_ENABLE,
        required=required,
        ranked=ranked,
    )


def _since_new(signal: str, name: str, *, unit: str, blind: str) -> FamilySpec:
    """A family that came with 0.5.12."""
    return FamilySpec(
        signal=signal, names=(NameSince(f"sglang:{name}", since=_NEW),), unit=unit, blind=blind, remedy=_NEWER
    )


def _seconds(signal: str, *names: str, blind: str) -> FamilySpec:
    """A histogram of seconds."""
    return FamilySpec(
        signal=signal,
        names=tuple(NameSince(f"sglang:{name}", since=_OLD) for name in names),
        unit="seconds",
        shape=Shape.HISTOGRAM,
        blind=blind,
        remedy=_ENABLE,
        ranked=False,
    )


PROFILE = EngineProfile(
    engine="sglang",
    title="SGLang",
    verified=False,
    default_paths=("/metrics", "/v1/loads?include=core,queues&format=json"),
    documents=("/v1/loads?include=core,queues&format=json",),
    prefixes=("sglang:", "sglang_"),
    markers=("sglang:num_running_reqs", "sglang:token_usage", "sglang_num_running_reqs"),
    versions=(
        VersionRange(name=_LOADS, present=("sglang_num_running_reqs",), absent=("sglang:num_running_reqs",)),
        VersionRange(name=_OLD, present=("sglang:token_usage",), absent=("sglang:kv_used_tokens",)),
        # The pages of 0.5.12 to 0.5.16 and of 0.5.20 on are alike: only their KV events are written differently.
        VersionRange(name=_NEW, present=("sglang:kv_used_tokens",)),
    ),
    semantics=Semantics(
        usage_includes_evictable=False,
        stale_when_idle_seconds=30.0,
        sampled_at_finish_only=frozenset({"e2e_seconds"}),
        lease_seconds=0.0,
    ),
    rank_label="dp_rank",
    first_of=("tp_rank", "pp_rank", "moe_ep_rank"),
    totals={"priority": ""},
    sum_over=("pid", "cache_source"),
    blind=(
        "which request holds a block, blocks shared, a lock on the radix tree that is never given back while requests "
        "run, waits by cause, refusals (streamed ones are answered with 200), requests that left while they waited"
    ),
    families=(
        _gauge(
            "running",
            "num_running_reqs",
            load="num_running_reqs",
            unit="requests",
            blind="whether the engine works at all",
        ),
        _gauge(
            "waiting",
            "num_queue_reqs",
            load="num_waiting_reqs",
            unit="requests",
            blind="the queue: idle holds and stalls",
        ),
        _gauge(
            "elsewhere",
            "num_grammar_queue_reqs",
            unit="requests",
            required=False,
            blind="requests that wait for a grammar",
        ),
        _gauge(
            "usage_ratio",
            "full_token_usage",
            "token_usage",
            load="token_usage",
            unit="ratio",
            blind="how full the pool is",
        ),
        FamilySpec(
            signal="block_size_tokens",
            names=(NameSince("sglang:page_size", since=_NEW),),
            unit="tokens",
            blind="how many tokens a block holds: no count of blocks is known",
            remedy=_NEWER,
        ),
        FamilySpec(
            signal="config_block_size_tokens",
            names=(NameSince("sglang:cache_config_info", since=_OLD, until=_OLD),),
            unit="tokens",
            shape=Shape.INFO,
            label="page_size",
            blind="how many tokens a block holds: no count of blocks is known",
            remedy=_ENABLE,
        ),
        _since_new("capacity_blocks", "num_pages", unit="blocks", blind="the pool's size"),
        FamilySpec(
            signal="config_capacity_blocks",
            names=(NameSince("sglang:cache_config_info", since=_OLD, until=_OLD),),
            unit="blocks",
            shape=Shape.INFO,
            label="num_pages",
            blind="the pool's size",
            remedy=_ENABLE,
        ),
        _gauge(
            "capacity_tokens",
            "max_total_num_tokens",
            load="max_total_num_tokens",
            unit="tokens",
            required=False,
            blind="the pool's size in tokens",
        ),
        FamilySpec(
            signal="active_blocks",
            names=(
                NameSince("sglang:kv_used_tokens", since=_NEW),
                NameSince("sglang:num_used_tokens", since=_OLD),
                NameSince("sglang_num_used_tokens"),
            ),
            unit="tokens",
            blind="blocks in use: idle holds cannot be told",
            remedy=_ENABLE,
        ),
        _gauge(
            "active_tokens",
            "num_used_tokens",
            load="num_used_tokens",
            unit="tokens",
            required=False,
            blind="tokens in use",
        ),
        _since_new("cached_blocks", "kv_evictable_tokens", unit="tokens", blind="blocks kept for reuse"),
        _since_new("free_blocks", "kv_available_tokens", unit="tokens", blind="free blocks"),
        FamilySpec(
            signal="pool_bytes",
            names=(NameSince("sglang:kv_cache_memory_usage_gb", since=_NEW),),
            unit="bytes",
            scale=float(1 << 30),
            required=False,
            blind="bytes of a block",
            remedy=_NEWER,
        ),
        _gauge(
            "held_by_sessions_tokens",
            "streaming_session_held_tokens",
            unit="tokens",
            required=False,
            blind="KV that sessions hold on purpose: it looks like an idle hold",
        ),
        FamilySpec(
            signal="transfers",
            names=(
                NameSince("sglang:num_prefill_prealloc_queue_reqs", since=_OLD, until=_OLD),
                NameSince("sglang:num_prefill_bootstrap_queue_reqs", since=_NEW),
                NameSince("sglang:num_prefill_inflight_queue_reqs", since=_OLD),
                NameSince("sglang:num_decode_prealloc_queue_reqs", since=_OLD),
                NameSince("sglang:num_decode_transfer_queue_reqs", since=_OLD),
                NameSince("sglang:num_decode_host_receive_queue_reqs", since=_NEW),
            ),
            unit="requests",
            shape=Shape.TOTAL,
            required=False,
            blind="requests between prefill and decode",
            remedy=_ENABLE,
        ),
        _gauge(
            "deferred_releases",
            "num_decode_deferred_kv_release_reqs",
            unit="requests",
            required=False,
            blind="ended requests whose KV is given back later",
        ),
        _gauge(
            "preemptions_total", "num_retracted_requests_total", unit="requests", required=False, blind="retractions"
        ),
        _gauge("evicted_tokens_total", "evicted_tokens_total", unit="tokens", required=False, blind="evictions"),
        _gauge(
            "prompt_tokens_total",
            "prompt_tokens_total",
            unit="tokens",
            ranked=False,
            blind="whether prompts are computed",
        ),
        _gauge(
            "generation_tokens_total",
            "generation_tokens_total",
            unit="tokens",
            ranked=False,
            blind="whether tokens come",
        ),
        _gauge(
            "prefix_queried_tokens_total",
            "prompt_tokens_total",
            unit="tokens",
            required=False,
            ranked=False,
            blind="what prefix sharing saves",
        ),
        _gauge(
            "prefix_hit_tokens_total",
            "cached_tokens_total",
            unit="tokens",
            required=False,
            ranked=False,
            blind="what prefix sharing saves",
        ),
        _seconds("ttft_seconds", "time_to_first_token_seconds", blind="time to first token"),
        _seconds("itl_seconds", "inter_token_latency_seconds", blind="time between tokens"),
        _seconds("e2e_seconds", "e2e_request_latency_seconds", blind="how long requests take"),
        FamilySpec(
            signal="queue_seconds",
            names=(NameSince("sglang:queue_time_seconds", since=_OLD),),
            unit="seconds",
            shape=Shape.HISTOGRAM,
            required=False,
            blind="how long requests wait (of those that begin to run)",
            remedy=_ENABLE,
        ),
    ),
)
