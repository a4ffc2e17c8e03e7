"""A plan is its parameters: equal seeds give equal requests, and one knob turns one thing."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger_agent.errors import UsageError
from kvledger_agent.load.arrivals import Arrival, FateKind, burst_times, poisson_times
from kvledger_agent.load.plan import LoadPlan
from kvledger_agent.load.profiles import PROFILES, REPLAY, Profile
from kvledger_agent.load.traces import Trace, TraceRow
from tests.load.prompts import prompt_ids

profiles = st.sampled_from(sorted(PROFILES))
seeds = st.integers(0, 2**32)


def a_plan(profile: Profile | str = "mixed", /, *, seed: int = 0, requests: int = 60, **changes: object) -> LoadPlan:
    named = PROFILES[profile] if isinstance(profile, str) else profile
    return dataclasses.replace(LoadPlan(profile=named, seed=seed, requests=requests), **changes)  # type: ignore[arg-type]


def an_azure_trace(count: int = 400) -> Trace:
    rows = tuple(TraceRow(number * 0.1, 50 + 37 * number % 1500, 1 + number % 90, None) for number in range(count))
    return Trace(name="azure.csv", format="azure", rows=rows)


@settings(max_examples=40, deadline=None)
@given(profile=profiles, seed=seeds, burst=st.integers(1, 5), length_scale=st.floats(0.05, 3))
def test_equal_seeds_give_the_identical_plan(profile: str, seed: int, burst: int, length_scale: float) -> None:
    one = a_plan(profile, seed=seed, burst=burst, length_scale=length_scale)
    other = a_plan(profile, seed=seed, burst=burst, length_scale=length_scale)

    assert list(one.arrivals()) == list(other.arrivals())
    assert list(one.arrivals()) == list(one.arrivals())
    for mine, theirs in zip(islice(one.arrivals(), 5), islice(other.arrivals(), 5), strict=True):
        assert prompt_ids(mine, seed=seed) == prompt_ids(theirs, seed=seed)


@settings(max_examples=20, deadline=None)
@given(profile=profiles, seed=seeds)
def test_another_seed_gives_another_plan(profile: str, seed: int) -> None:
    assert list(a_plan(profile, seed=seed).arrivals()) != list(a_plan(profile, seed=seed + 1).arrivals())


@settings(max_examples=20, deadline=None)
@given(seed=seeds, percent=st.floats(1, 100))
def test_more_disconnects_change_nothing_but_fates(seed: int, percent: float) -> None:
    calm = PROFILES["shared-prefix"]
    stormy = dataclasses.replace(calm, disconnect_percent=percent)

    def without_fate(profile: Profile) -> list[dict[str, object]]:
        arrivals = a_plan(profile, seed=seed).arrivals()
        return [dataclasses.asdict(arrival) | {"fate": None} for arrival in arrivals]

    assert without_fate(calm) == without_fate(stormy)


def test_storm_fates_come_at_the_stated_shares() -> None:
    arrivals = list(a_plan("storm", requests=8000).arrivals())
    percents = {kind: count * 100 / len(arrivals) for kind, count in Counter(a.fate.kind for a in arrivals).items()}

    assert percents[FateKind.DISCONNECT] == pytest.approx(30, abs=2)
    assert percents[FateKind.TIMEOUT] == pytest.approx(10, abs=1.5)
    assert percents[FateKind.RECONNECT] == pytest.approx(10, abs=1.5)
    drops = [a for a in arrivals if a.fate.kind in (FateKind.DISCONNECT, FateKind.RECONNECT)]
    before_first = sum(a.fate.after_tokens == 0 for a in drops) * 100 / len(drops)
    assert before_first == pytest.approx(33, abs=3)
    assert all(a.fate.after_tokens < a.output_tokens for a in drops), "a drop at the last token is none"


def test_only_a_storm_has_fates_unless_asked() -> None:
    for name in set(PROFILES) - {"storm"}:
        assert {a.fate.kind for a in a_plan(name, requests=300).arrivals()} == {FateKind.FINISH}, name


def test_system_prefixes_are_shared_within_a_tenant_and_span_several_blocks() -> None:
    arrivals = list(a_plan("shared-prefix", requests=500, tenants=3, prefixes_per_tenant=2).arrivals())
    prefixes = {arrival.prefix[0] for arrival in arrivals if arrival.prefix}

    assert all(arrival.prefix is not None and arrival.prefix[0].scope == arrival.tenant for arrival in arrivals)
    assert len(prefixes) == 3 * 2
    assert all(prefix.tokens >= 3 * 16 for prefix in prefixes)
    assert all(a.prefix is not None and a.prompt_tokens > a.prefix[0].tokens for a in arrivals)


def test_a_prefix_stays_several_blocks_long_however_small_the_scale() -> None:
    arrivals = a_plan("shared-prefix", length_scale=0.01).arrivals()

    assert min(arrival.prefix[0].tokens for arrival in arrivals if arrival.prefix) == 48


def test_an_azure_replay_keeps_every_length_and_prefixes_the_stated_share() -> None:
    trace = an_azure_trace()
    plan = LoadPlan(trace=trace, profile=dataclasses.replace(REPLAY, prefix_percent=40.0), time_scale=0.5)
    arrivals = list(plan.arrivals())

    assert [arrival.prompt_tokens for arrival in arrivals] == [row.prompt_tokens for row in trace.rows]
    assert [arrival.output_tokens for arrival in arrivals] == [row.output_tokens for row in trace.rows]
    assert [arrival.at_seconds for arrival in arrivals] == [row.at_seconds * 0.5 for row in trace.rows]
    prefixed = [arrival for arrival in arrivals if arrival.prefix]
    assert len(prefixed) * 100 / len(arrivals) == pytest.approx(40, abs=7)
    assert all(a.prefix is not None and a.prefix[0].tokens < a.prompt_tokens for a in prefixed)
    assert len({arrival.tenant for arrival in arrivals}) == 4


def test_a_mooncake_conversation_stays_with_its_tenant() -> None:
    rows = tuple(TraceRow(float(n), 1024 + n, 8, (0, n % 7, 100 + n)) for n in range(200))
    arrivals = list(LoadPlan(trace=Trace("m.jsonl", "mooncake", rows), tenants=3).arrivals())

    tenants: dict[int, set[str]] = {}
    for arrival, row in zip(arrivals, rows, strict=True):
        assert row.hash_ids is not None
        tenants.setdefault(row.hash_ids[1], set()).add(arrival.tenant)
    assert all(len(names) == 1 for names in tenants.values())
    assert len(set.union(*tenants.values())) > 1


def test_a_storm_can_ride_on_a_trace() -> None:
    arrivals = list(LoadPlan(trace=an_azure_trace(), profile=PROFILES["storm"]).arrivals())

    assert {arrival.fate.kind for arrival in arrivals} == set(FateKind)
    assert [arrival.prompt_tokens for arrival in arrivals] == [row.prompt_tokens for row in an_azure_trace().rows]


def test_arrivals_end_with_the_duration() -> None:
    plan = LoadPlan(profile=PROFILES["short"], rate_per_second=50, duration_seconds=2.0)
    times = [arrival.at_seconds for arrival in plan.arrivals()]

    assert 60 < len(times) < 140
    assert times == sorted(times)
    assert times[-1] < 2.0


@pytest.mark.parametrize("burst", [1, 8])
def test_the_mean_rate_is_the_stated_one_with_and_without_bursts(burst: int) -> None:
    times = list(islice(burst_times(20.0, burst, random.Random(3)), 16_000))

    assert len(times) / times[-1] == pytest.approx(20.0, rel=0.06)
    assert len(set(times)) == len(times) / burst


def test_poisson_gaps_are_exponential() -> None:
    times = list(islice(poisson_times(10.0, random.Random(5)), 20_000))
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert mean == pytest.approx(0.1, rel=0.03)
    assert variance**0.5 == pytest.approx(mean, rel=0.05), "an exponential's deviation equals its mean"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"requests": 0}, "requests=0"),
        ({"rate_per_second": 0.0}, "rate_per_second=0"),
        ({"burst": 0}, "burst=0"),
        ({"tenants": 0}, "tenants=0"),
        ({"length_scale": 0.0}, "length_scale=0"),
        ({"time_scale": -1.0}, "time_scale=-1"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"drain_seconds": -1.0}, "drain_seconds=-1"),
        ({"requests": None}, "nothing ends this run"),
        ({"profile": REPLAY}, "give a trace"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_with_its_value(changes: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        a_plan("short", **changes)  # type: ignore[arg-type]


def test_fates_above_one_hundred_percent_are_refused() -> None:
    with pytest.raises(UsageError, match="110"):
        dataclasses.replace(PROFILES["storm"], disconnect_percent=90.0)
    with pytest.raises(UsageError, match="disconnect_percent=-1"):
        dataclasses.replace(PROFILES["short"], disconnect_percent=-1)


def test_the_parameters_tell_all_that_determines_the_run() -> None:
    parameters = LoadPlan(trace=an_azure_trace(5), seed=9).parameters()

    assert parameters["seed"] == 9
    assert parameters["trace"] == {"name": "azure.csv", "format": "azure", "requests": 5}
    assert {field.name for field in dataclasses.fields(LoadPlan)} == set(parameters)


def test_every_arrival_has_a_serial_of_its_own() -> None:
    arrivals: list[Arrival] = list(a_plan("mixed", requests=50).arrivals())

    assert [arrival.serial for arrival in arrivals] == list(range(50))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            LoadPlan(profile=PROFILES["storm"], duration_seconds=30, seed=3),
            "seed 3, profile storm, 10 requests/s, for 30 s",
        ),
        (LoadPlan(trace=an_azure_trace(), time_scale=0.5), "seed 0, trace azure.csv (400 requests), time × 0.5"),
        (
            LoadPlan(trace=an_azure_trace(), duration_seconds=9, requests=1000),
            "seed 0, trace azure.csv (400 requests), time × 1, for 9 s, at most 1,000 requests",
        ),
    ],
)
def test_a_plan_is_told_in_one_line(plan: LoadPlan, said: str) -> None:
    assert plan.in_words() == said
