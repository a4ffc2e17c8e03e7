"""An engine that is seen both ways is one: its ledger wins, and its page adds what no ledger can count."""

from __future__ import annotations

from dataclasses import replace

from kvledger_agent.observation import LEDGER, Observation, Series, Totals
from kvledger_agent.scrape.detect import detect
from kvledger_agent.scrape.judgement import scraped_verdict
from kvledger_agent.scrape.merge import merged
from kvledger_agent.scrape.observe import observation_of
from kvledger_agent.scrape.page import parse_page
from kvledger_agent.scrape.reading import EngineReading, read
from kvledger_agent.scrape.symptoms import SymptomTracker
from kvledger_agent.verdict.judge import Judge
from tests.agent.scrape.serving import page


def reading(text: bytes | str) -> EngineReading:
    parsed = parse_page(text)
    known = detect(parsed)
    return read(known.profile, known.version_range, parsed, monotonic_ns=1, wall_ns=1)[0]


def observed(text: bytes | str, name: str = "a") -> Observation:
    profile, known = detect(parse_page(text)).profile, reading(text)
    judged = SymptomTracker(profile).judged(known)
    seen = observation_of(known, (), name=name, profile=profile, judged=judged, seq=1)
    return replace(seen, verdict=scraped_verdict(Judge(), profile, seen))


def test_the_ledger_wins_and_refusals_at_the_door_are_added() -> None:
    scraped = observed(
        "vllm:num_requests_running 1\nvllm:prompt_tokens_total 5\nvllm:num_preemptions_total 3\n"
        'vllm:admission_rejections_total{reason="max_num_queued_reqs"} 2\n'
        'vllm:admission_rejections_total{reason="max_num_queued_tokens"} 0\n'
    )
    counters: dict[str, Series] = {
        "prompt_tokens_total": {(): 7.0},
        "rejections_total": {("queue_full",): 1.0, ("bad_request",): 4.0},
    }
    ledger = replace(scraped, source=LEDGER, totals=Totals(counters=counters))

    (one,), _ = merged(((ledger,), ()), ((scraped,), ()))

    assert one.source == LEDGER
    assert one.totals.counters["prompt_tokens_total"] == {(): 7.0}
    assert one.totals.counters["rejections_total"] == {("queue_full",): 3.0, ("bad_request",): 4.0}
    assert one.totals.counters["preemptions_total"] == {("recompute",): 3.0}


def test_a_page_that_fails_makes_no_refusal_undone_and_once_it_is_gone_refusals_are_unknown() -> None:
    door = (
        "vllm:num_requests_running 1\n"
        'vllm:admission_rejections_total{reason="max_num_queued_reqs"} %d\n'
        'vllm:admission_rejections_total{reason="max_num_queued_tokens"} 0\n'
    )
    scraped = observed(door % 2)
    ledger = replace(scraped, source=LEDGER, totals=Totals(counters={"rejections_total": {("queue_full",): 1.0}}))
    doors = set[str]()

    def refused(*pages: Observation) -> Series | None:
        (one,), _ = merged(((ledger,), ()), (pages, ()), doors)
        assert one.source == LEDGER
        return one.totals.counters.get("rejections_total")

    assert refused() == {("queue_full",): 1.0}, "no page was ever read"
    assert refused(scraped) == {("queue_full",): 3.0}
    assert refused(replace(scraped, liveness=replace(scraped.liveness, last_served=True))) == {("queue_full",): 3.0}
    assert refused() is None
    assert refused(observed("vllm:num_requests_running 1\n")) is None
    assert refused(observed(door % 4)) == {("queue_full",): 5.0}


def test_engines_of_other_names_stay_apart() -> None:
    text = page("vllm-0.32-busy.prom")

    observations, _ = merged(((observed(text, "a"),), ()), ((observed(text, "b"),), ()))

    assert [observation.identity.key for observation in observations] == ["a:0", "b:0"]


def test_a_restart_of_the_engine_begins_every_suspicion_anew() -> None:
    text = page("vllm-0.32-idle_hold.prom")
    held, tracker = reading(text), SymptomTracker(detect(parse_page(text)).profile)

    def look(second: int, *, tokens: float) -> list[str]:
        at = replace(held, monotonic_ns=second * 10**9, generation_tokens_total=tokens)
        return [finding.kind.word for finding in tracker.update(at)]

    assert [look(second, tokens=9.0) for second in (0, 45, 89)] == [[]] * 3
    assert look(90, tokens=9.0) == ["idle_hold"]
    assert [look(second, tokens=2.0) for second in (95, 140, 184)] == [[]] * 3
    assert look(185, tokens=2.0) == ["idle_hold"]


def test_a_page_that_is_silent_for_once_closes_no_finding() -> None:
    text = page("vllm-0.32-idle_hold.prom")
    held, tracker = reading(text), SymptomTracker(detect(parse_page(text)).profile)
    for second in (0, 50, 100):
        found = tracker.update(replace(held, monotonic_ns=second * 10**9))
    assert len(found) == 1

    silent = replace(held, monotonic_ns=105 * 10**9, active_blocks=None, usage_ratio=None)

    assert tracker.update(silent) == found
    assert tracker.update(replace(held, monotonic_ns=110 * 10**9, active_blocks=0)) == ()
