"""What a page alone can say of what limits an engine, and that it says nothing beyond that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvledger.words import Reason, Verdict
from kvledger_agent.observation import VerdictView
from kvledger_agent.scrape.detect import detect
from kvledger_agent.scrape.judgement import scraped_verdict
from kvledger_agent.scrape.observe import observation_of
from kvledger_agent.scrape.page import parse_page
from kvledger_agent.scrape.reading import EngineReading, read
from kvledger_agent.verdict.judge import Judge
from tests.agent.scrape.serving import page
from tests.agent.scrape.test_merge import reading

NS, SCRAPE_SECONDS, LOOKS = 10**9, 5, 20
VLLM = """
vllm:num_requests_running {running}
vllm:num_requests_waiting {waiting}
vllm:num_requests_waiting_by_reason{{reason="capacity"}} {capacity}
vllm:num_requests_waiting_by_reason{{reason="deferred"}} {deferred}
vllm:kv_cache_usage_perc {usage}
vllm:cache_config_info{{num_gpu_blocks="1001",block_size="16"}} 1
vllm:num_preemptions_total {preemptions}
vllm:prompt_tokens_total {tokens}
vllm:generation_tokens_total {tokens}
vllm:request_success_total{{finished_reason="stop"}} {ended}
vllm:request_success_total{{finished_reason="length"}} 0
vllm:request_success_total{{finished_reason="abort"}} 0
"""
DOOR = """
vllm:admission_rejections_total{{reason="max_num_queued_reqs"}} {refused}
vllm:admission_rejections_total{{reason="max_num_queued_tokens"}} 0
"""


def vllm(text: str = VLLM, *, growing: dict[str, int] | None = None, **numbers: Any) -> VerdictView:
    """The verdict after a minute and more of pages with these numbers; those that grow do so from look to look."""
    judge = Judge()
    for look in range(LOOKS):
        known: dict[str, Any] = {"running": 20, "waiting": 0, "deferred": 0, "usage": 0.5, "preemptions": 0}
        known |= numbers | {"tokens": 100 * look, "ended": 2 * look, "refused": 0}
        known |= {name: by * look for name, by in (growing or {}).items()}
        known["capacity"] = known["waiting"] - known["deferred"]
        parsed = parse_page(text.format(**known))
        found = detect(parsed)
        at = look * SCRAPE_SECONDS * NS
        (one,) = read(found.profile, found.version_range, parsed, monotonic_ns=at, wall_ns=at)
        view = judged(judge, one)
    return view


def judged(judge: Judge, one: EngineReading) -> VerdictView:
    profile = detect(parse_page(VLLM.format_map(_Zeros()))).profile
    seen = observation_of(one, (), name="a", profile=profile, judged=(), seq=1)
    return scraped_verdict(judge, profile, seen)


class _Zeros(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 0


def test_a_pool_that_ran_out_while_requests_wait_is_certainly_the_limit() -> None:
    view = vllm(usage=0.88, waiting=9, growing={"preemptions": 1})

    assert (view.verdict, view.reason) == (Verdict.POOL_BOUND, Reason.MANY_REQUESTS)
    assert view.evidence.startswith("certain: 9.0 requests wait on average, 88 % of the pool is held by 20.0 that run")
    assert "it ran out 13 times in 65 s" in view.evidence or "it ran out 12 times in 60 s" in view.evidence
    assert view.missing == ("wait causes", "blocks by request", "blocks by tenant")


def test_a_pool_with_hardly_a_block_left_is_likely_the_limit_and_few_that_run_are_long() -> None:
    few, many = vllm(usage=0.97, waiting=9, running=3), vllm(usage=0.97, waiting=9)

    assert (few.reason, many.reason) == (Reason.LONG_REQUESTS, Reason.MANY_REQUESTS)
    assert few.evidence.startswith("likely: ")


def test_requests_that_wait_beside_a_pool_with_room_are_unknown_and_what_would_tell_is_named() -> None:
    for usage in (0.4, 0.88):
        view = vllm(usage=usage, waiting=9)
        assert (view.verdict, view.missing) == (Verdict.UNKNOWN, ("wait causes",))


def test_deferred_requests_are_no_pool_that_is_short() -> None:
    view = vllm(usage=0.97, waiting=9, deferred=7)

    assert (view.verdict, view.missing) == (Verdict.UNKNOWN, ("what deferred and paused requests wait for",))


def test_a_busy_engine_that_keeps_nobody_waiting_is_unknown_for_want_of_step_times() -> None:
    assert vllm().missing == ("step times",)
    assert vllm(usage=0.9).reason is Reason.FULL_USE


def test_refusals_by_a_full_queue_are_an_overload_if_the_pool_is_short_and_else_unknown() -> None:
    short, roomy = (vllm(VLLM + DOOR, usage=usage, waiting=9, growing={"refused": 40}) for usage in (0.97, 0.4))

    assert (short.verdict, short.reason) == (Verdict.POOL_BOUND, Reason.OVERLOAD)
    assert "of 546 arrivals (95 %)" in short.evidence or "(95 %) were refused at the door" in short.evidence
    assert (roomy.verdict, roomy.missing) == (Verdict.UNKNOWN, ("wait causes",))


def test_a_usage_that_counts_what_is_kept_for_reuse_is_not_how_full_the_pool_is() -> None:
    warm = replace(reading(page("lmdeploy-pytorch-busy.prom")), running=3, waiting=9)
    judge = Judge()
    for look in range(LOOKS):
        view = judged(judge, replace(warm, monotonic_ns=look * SCRAPE_SECONDS * NS))

    assert warm.usage_includes_evictable is True
    assert (view.verdict, view.missing) == (Verdict.UNKNOWN, ("blocks free or kept for reuse", "wait causes"))
