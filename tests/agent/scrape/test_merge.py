"""An engine that is seen both ways is one: its ledger wins, and its page adds what no ledger can count."""

from __future__ import annotations

from dataclasses import replace

from kvledger.words import Reason
from kvledger_agent.observation import LEDGER, Observation, Series, Totals, VerdictView
from kvledger_agent.scrape.detect import detect
from kvledger_agent.scrape.judgement import scraped_verdict
from kvledger_agent.scrape.merge import Pages
from kvledger_agent.scrape.observe import observation_of
from kvledger_agent.scrape.page import parse_page
from kvledger_agent.scrape.reading import EngineReading, read
from kvledger_agent.scrape.sources import Seen
from kvledger_agent.scrape.symptoms import SymptomTracker
from kvledger_agent.verdict.judge import Judge
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch
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


def together(ledgers: tuple[Observation, ...], scraped: tuple[Observation, ...], doors: set[str] | None = None) -> Seen:
    pages = Pages((scraped, ()), doors)
    return pages.beside((tuple(map(pages.complete, ledgers)), ()))


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

    (one,), _ = together((ledger,), (scraped,))

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
        (one,), _ = together((ledger,), pages, doors)
        assert one.source == LEDGER
        return one.totals.counters.get("rejections_total")

    assert refused() == {("queue_full",): 1.0}, "no page was ever read"
    assert refused(scraped) == {("queue_full",): 3.0}
    assert refused(replace(scraped, liveness=replace(scraped.liveness, last_served=True))) == {("queue_full",): 3.0}
    assert refused() is None
    assert refused(observed("vllm:num_requests_running 1\n")) is None
    assert refused(observed(door % 4)) == {("queue_full",): 5.0}


def at_the_door(watch: EngineWatch, *, refused: int) -> Observation:
    """What a ledger that knows no refusals says beside a page that counts them; a second later."""
    seen = observed(
        "vllm:num_requests_running 1\n"
        f'vllm:admission_rejections_total{{reason="max_num_queued_reqs"}} {refused}\n'
        'vllm:admission_rejections_total{reason="max_num_queued_tokens"} 0\n',
        name=watch.source.identity.engine,
    )
    watch.clock.advance(NS)
    watch.loop.step()
    return watch.source.look(complete=Pages(((seen,), ())).complete)


def test_refusals_that_only_the_page_counts_are_in_the_verdict_of_the_ledger() -> None:
    """As with vLLM's plugin: the core never hears of whom the server turns away."""
    watch = EngineWatch(capacity_blocks=16, max_num_seqs=8)
    for number in range(8):
        watch.loop.submit(NewRequest(request_id=f"r{number}", prompt=[1 + number] * 12, max_tokens=40))
    watch.loop.step()

    seen = [at_the_door(watch, refused=5 * second) for second in range(15)]

    alone = EngineWatch(capacity_blocks=16, max_num_seqs=8)
    for number in range(8):
        alone.loop.submit(NewRequest(request_id=f"r{number}", prompt=[1 + number] * 12, max_tokens=40))
    for _ in range(15):
        alone.clock.advance(NS)
        alone.loop.step()
        without = alone.look()
    assert without.verdict is not None
    assert without.verdict.reason is not Reason.OVERLOAD
    verdict = judged_alike(seen[-1])
    assert verdict.reason is Reason.OVERLOAD, verdict
    assert "of 70 arrivals (100 %)" in verdict.evidence
    assert seen[-1].totals.counters["rejections_total"][("queue_full",)] == 70


def judged_alike(observation: Observation) -> VerdictView:
    assert observation.verdict is not None
    return observation.verdict


def test_engines_of_other_names_stay_apart() -> None:
    text = page("vllm-0.32-busy.prom")

    observations, _ = together((observed(text, "a"),), (observed(text, "b"),))

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
