"""The open loop against a real endpoint: nothing the endpoint does changes when requests are sent."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections import Counter
from collections.abc import Callable, Coroutine

import pytest
from aiohttp import web

from kvledger_agent.load.arrivals import FateKind
from kvledger_agent.load.plan import LoadPlan, RequestOptions
from kvledger_agent.load.profiles import PROFILES, Profile, Shape
from kvledger_agent.load.report import LoadReport
from kvledger_agent.load.runner import Stop, drive
from kvledger_agent.load.tally import Progress
from tests.load.endpoint import Behaviour, Endpoint, Seen, hang, refuse, serving, stream_all, stream_slowly

SMALL = Profile(name="small", shapes=(Shape(prompt_tokens=(16, 32), output_tokens=(6, 12)),))
STORM = dataclasses.replace(
    PROFILES["storm"],
    shapes=SMALL.shapes,
    disconnect_percent=40.0,
    patience_seconds=(0.01, 0.05),
    drop_seconds=(0.01, 0.05),
)


def a_plan(profile: Profile = SMALL, *, requests: int = 50, rate: float = 200.0, **changes: object) -> LoadPlan:
    plan = LoadPlan(profile=profile, requests=requests, rate_per_second=rate, seed=2)
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def driven(
    plan: LoadPlan,
    behaviour: Behaviour,
    *,
    meanwhile: Callable[[Endpoint, Stop], Coroutine[None, None, None]] | None = None,
) -> tuple[LoadReport, Endpoint]:
    """The report of a plan carried out against an endpoint that behaves so, while something else goes on."""

    async def run() -> tuple[LoadReport, Endpoint]:
        async with serving(behaviour) as endpoint:
            stop = Stop()
            other = asyncio.create_task(meanwhile(endpoint, stop)) if meanwhile else None
            report = await drive(plan, base_url=endpoint.url, stop=stop)
            if other:
                await other
            return report, endpoint

    return asyncio.run(run())


def assert_every_request_ended(report: LoadReport) -> None:
    ended = report.completed + report.rejected + report.cancellations + report.timeouts + report.failed + report.cut
    assert report.sent == ended
    assert report.arrivals + report.reconnects == report.sent + report.dropped
    assert report.rejected == sum(report.rejections.values()) == sum(report.rejection_statuses.values())
    assert report.failed == sum(report.failures.values())


def test_a_plan_is_carried_out_and_reported() -> None:
    plan = a_plan()
    report, endpoint = driven(plan, stream_all)

    arrivals = list(plan.arrivals())
    assert report.completed == report.sent == report.arrivals == len(endpoint.seen) == 50
    assert report.prompt_tokens == sum(arrival.prompt_tokens for arrival in arrivals)
    assert report.output_tokens == sum(arrival.output_tokens for arrival in arrivals)
    assert report.time_to_first_token.count == report.request_duration.count == 50
    assert report.inter_token_latency.count == report.output_tokens - 50
    assert report.parameters == plan.parameters()
    assert (report.seed, report.model, report.interrupted) == (2, "cell", False)
    assert_every_request_ended(report)


def test_a_stalled_endpoint_does_not_delay_the_sends() -> None:
    release = asyncio.Event()
    plan = a_plan(requests=80, rate=40.0)

    async def stall(endpoint: Endpoint, request: web.Request, seen: Seen) -> web.StreamResponse:
        await release.wait()
        return await stream_all(endpoint, request, seen)

    async def when_all_are_there(endpoint: Endpoint, _: Stop) -> None:
        await endpoint.until(lambda it: len(it.seen) == 80)
        release.set()

    report, endpoint = driven(plan, stall, meanwhile=when_all_are_there)

    assert report.completed == report.peak_in_flight == 80, "all were open at once: none waited for another"
    sent = [seen.at_seconds - endpoint.seen[0].at_seconds for seen in endpoint.seen]
    planned = [arrival.at_seconds for arrival in plan.arrivals()]
    intended = [at_seconds - planned[0] for at_seconds in planned]
    assert max(abs(was - meant) for was, meant in zip(sent, intended, strict=True)) < 1.0
    assert_every_request_ended(report)


def test_time_to_first_token_of_a_slow_endpoint_includes_its_whole_queue() -> None:
    lock = asyncio.Lock()

    async def one_at_a_time(endpoint: Endpoint, request: web.Request, seen: Seen) -> web.StreamResponse:
        async with lock:
            return await stream_slowly(first_seconds=0.02, token_seconds=0)(endpoint, request, seen)

    report, _ = driven(a_plan(requests=40, rate=1000.0), one_at_a_time)

    # 40 requests at once, 20 ms each: the median waits for twenty of them. A closed loop would have seen 20 ms.
    assert report.time_to_first_token.p50_seconds is not None
    assert report.time_to_first_token.p50_seconds > 0.3


def test_the_generators_own_lateness_is_reported_and_counted_into_latency() -> None:
    async def block_the_loop(endpoint: Endpoint, _: Stop) -> None:
        await endpoint.until(lambda it: len(it.seen) >= 5)
        deadline = asyncio.get_running_loop().time() + 0.3
        while asyncio.get_running_loop().time() < deadline:
            pass

    report, _ = driven(a_plan(requests=60), stream_all, meanwhile=block_the_loop)

    assert report.completed == 60
    assert report.generator_lateness.max_seconds is not None
    assert report.generator_lateness.max_seconds > 0.2
    assert report.time_to_first_token.max_seconds is not None
    assert report.time_to_first_token.max_seconds > 0.2


def test_the_fates_of_a_storm_happen_as_planned() -> None:
    plan = a_plan(STORM, requests=300, rate=400.0)
    fates = Counter(arrival.fate.kind for arrival in plan.arrivals())
    report, endpoint = driven(plan, stream_slowly(first_seconds=0.1, token_seconds=0.002))

    # The first token comes after every client's patience, and the stream outlasts every drop.
    assert report.cancellations == fates[FateKind.DISCONNECT] + fates[FateKind.RECONNECT]
    assert report.reconnects == fates[FateKind.RECONNECT]
    assert report.timeouts == fates[FateKind.TIMEOUT]
    assert report.completed == fates[FateKind.FINISH] + fates[FateKind.RECONNECT]
    assert 0 < report.cancelled_before_first_token < report.cancellations
    assert report.failed == report.cut == 0
    prompts = Counter(tuple(seen.body["prompt"]) for seen in endpoint.seen)
    # On a busy machine a drop may come before the server has read the request, so not every first one is seen.
    assert len(prompts) <= report.arrivals, "a reconnecting client sends no other prompt"
    assert max(prompts.values()) == 2, "it sends the same prompt again"
    assert report.no_token_duration.count == report.timeouts + report.cancelled_before_first_token
    assert_every_request_ended(report)


def test_refusals_are_counted_by_reason_and_status_and_are_no_failures() -> None:
    report, _ = driven(a_plan(requests=20), refuse(429, "tenant_quota"))

    assert report.rejections == {"tenant_quota": 20}
    assert report.rejection_statuses == {"429": 20}
    assert report.failed == report.prompt_tokens == 0
    assert report.time_to_first_token.count == 0
    assert report.time_to_first_token.p50_seconds is None
    assert_every_request_ended(report)


def test_arrivals_above_max_in_flight_are_dropped_and_counted() -> None:
    report, endpoint = driven(a_plan(requests=30, rate=600.0, max_in_flight=7, drain_seconds=1.0), hang)

    assert (report.arrivals, report.sent, report.dropped) == (30, 7, 23)
    assert report.cut == report.peak_in_flight == len(endpoint.seen) == 7
    assert_every_request_ended(report)


def test_open_requests_get_the_drain_time_and_are_then_cut() -> None:
    quick = driven(a_plan(requests=10, drain_seconds=20.0), stream_slowly(first_seconds=0.2, token_seconds=0))[0]
    slow = driven(a_plan(requests=10, drain_seconds=0.0), stream_slowly(first_seconds=0.5, token_seconds=0))[0]

    assert (quick.completed, quick.cut) == (10, 0)
    assert slow.cut > 0
    assert_every_request_ended(slow)


def test_asked_to_stop_once_the_open_requests_still_end() -> None:
    async def ask(endpoint: Endpoint, stop: Stop) -> None:
        await endpoint.until(lambda it: len(it.seen) >= 5)
        stop.ask()

    plan = a_plan(requests=10_000, rate=50.0)
    report, _ = driven(plan, stream_slowly(first_seconds=0.2, token_seconds=0), meanwhile=ask)

    assert report.interrupted
    assert report.arrivals < 200
    assert (report.completed, report.cut) == (report.sent, 0)


def test_asked_to_stop_twice_the_open_requests_are_cut_at_once() -> None:
    async def ask_twice(endpoint: Endpoint, stop: Stop) -> None:
        await endpoint.until(lambda it: len(it.seen) >= 5)
        stop.ask()
        stop.ask()
        await endpoint.until(lambda it: it.disconnects == len(it.seen))

    report, _ = driven(a_plan(requests=10_000, rate=100.0, drain_seconds=60.0), hang, meanwhile=ask_twice)

    assert report.interrupted
    assert report.cut == report.sent > 0
    assert report.elapsed_seconds < 30
    assert_every_request_ended(report)


def test_cancelling_the_run_closes_every_request() -> None:
    async def run() -> None:
        async with serving(hang) as endpoint:
            task = asyncio.create_task(drive(a_plan(requests=10_000), base_url=endpoint.url))
            await endpoint.until(lambda it: len(it.seen) >= 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await endpoint.until(lambda it: it.disconnects == len(it.seen))

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_endpoint_that_goes_away_leaves_failures_and_no_exception() -> None:
    async def run() -> LoadReport:
        async with serving(stream_slowly(first_seconds=0, token_seconds=0.05)) as endpoint:
            plan = a_plan(requests=60, rate=100.0, options=RequestOptions(model="cell"))
            task = asyncio.create_task(drive(plan, base_url=endpoint.url))
            await endpoint.until(lambda it: len(it.seen) >= 10)
        return await task

    report = asyncio.run(run())
    # The endpoint of this test vanishes while it accepts; the sockets it leaves are its own, and go here, not later.
    gc.collect()

    assert report.failed > 0
    assert set(report.failures) <= {"connect", "disconnected", "stream_cut"}
    assert_every_request_ended(report)


def test_progress_is_told_as_the_run_goes_on_and_at_its_end() -> None:
    async def run() -> tuple[LoadReport, list[Progress]]:
        told: list[Progress] = []
        async with serving(stream_all) as endpoint:
            return await drive(a_plan(requests=20), base_url=endpoint.url, on_progress=told.append), told

    report, told = asyncio.run(run())

    assert told[0].sent == 0
    assert (told[-1].completed, told[-1].in_flight, told[-1].output_tokens) == (20, 0, report.output_tokens)
