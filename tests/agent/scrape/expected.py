"""A reading compared with what was expected of it. Knows the words of the expectations; judges nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kvledger_agent.observation import HistogramView
from kvledger_agent.scrape.reading import EngineReading

NAMES = {
    "finished_by_reason": "finished_total",
    "rejections_by_reason": "rejections_total",
    "ttft": "ttft_seconds",
    "itl": "itl_seconds",
    "e2e": "e2e_seconds",
    "queue": "queue_seconds",
}


def differences(reading: EngineReading, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What of one rank is not as expected: key -> (got, expected)."""
    wrong = {}
    for key, expected in flat(values).items():
        got = value_of(reading, key)
        if not same(got, expected, includes=key.endswith("_includes")):
            wrong[key] = (got, expected)
    return wrong


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Expected values with histograms as `histograms.NAME`."""
    known = {key: value for key, value in values.items() if key != "histograms"}
    return known | {f"histograms.{name}": value for name, value in (values.get("histograms") or {}).items()}


def value_of(reading: EngineReading, key: str) -> Any:
    """A value of a reading by its key in an expectation."""
    name = key.removeprefix("histograms.").removesuffix("_includes")
    value = getattr(reading, NAMES.get(name, name))
    if isinstance(value, HistogramView):
        return {"count": float(value.buckets.sum()), "sum": value.sum}
    return value


def same(got: Any, expected: Any, *, includes: bool) -> bool:
    """Equal, unknown to unknown alone; `includes`: a mapping may have more than is expected."""
    if expected is None or got is None:
        return got is expected
    if isinstance(expected, Mapping):
        if not includes and set(got) != set(expected):
            return False
        return all(key in got and same(got[key], value, includes=False) for key, value in expected.items())
    return bool(got == pytest.approx(expected, abs=1e-9))
