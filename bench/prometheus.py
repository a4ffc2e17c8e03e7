"""A Prometheus that is asked: timed queries, its own metrics, its rule groups. One connection, kept open."""

from __future__ import annotations

import http.client
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from bench.errors import BenchError

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One answer: the time from the request to the last byte, the samples read, and which series it has."""

    seconds: float
    samples_read: float
    series: frozenset[tuple[tuple[str, str], ...]]
    values: tuple[float, ...]


class PrometheusClient:
    """Asks one Prometheus. Raises `BenchError` for whatever it refuses."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)

    def ask(self, expression: str) -> Asked:
        """A query of now."""
        return self._asked("/api/v1/query", {"query": expression, "stats": "all"})

    def ask_range(self, expression: str, *, seconds: float, step_seconds: float) -> Asked:
        """A query over the last so many seconds, as a graph asks."""
        end = time.time()
        parameters = {"query": expression, "start": end - seconds, "end": end, "step": step_seconds}
        return self._asked("/api/v1/query_range", parameters)

    def numbers(self, expression: str) -> tuple[float, ...]:
        """The values of all series of a query of now."""
        return self.ask(expression).values

    def number(self, expression: str) -> float | None:
        """The value of the one series of a query of now; None without one."""
        return next(iter(self.numbers(expression)), None)

    def metrics(self) -> dict[str, float]:
        """Its own metrics, each added up over its labels: what it has appended, it tells by type."""
        found: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(self._get("/metrics").decode()):
            for sample in family.samples:
                found[sample.name] += sample.value
        return dict(found)

    def rule_groups(self) -> dict[str, float]:
        """Seconds that the last evaluation of each rule group took. Raises `BenchError` for a rule that fails."""
        groups = self._json("/api/v1/rules")["groups"]
        failed = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]
        if failed:
            raise BenchError(f"rules that cannot be evaluated: {failed}")
        return {group["name"]: float(group["evaluationTime"]) for group in groups}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _asked(self, path: str, parameters: dict[str, Any]) -> Asked:
        began = time.perf_counter()
        body = self._get(f"{path}?{urlencode(parameters)}")
        seconds = time.perf_counter() - began
        data = self._data(body, path)
        result = data["result"]
        return Asked(
            seconds=seconds,
            samples_read=float(data.get("stats", {}).get("samples", {}).get("totalQueryableSamples", 0)),
            series=frozenset(_named(found["metric"]) for found in result),
            values=tuple(float(found["value"][1]) for found in result if "value" in found),
        )

    def _json(self, path: str) -> dict[str, Any]:
        return self._data(self._get(path), path)

    def _data(self, body: bytes, path: str) -> dict[str, Any]:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise BenchError(f"Prometheus refused {path}: {answer.get('error')}")
        data: dict[str, Any] = answer["data"]
        return data

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise BenchError(f"Prometheus answered {path} with {answer.status}: {body[:200]!r}")
        return body


def _named(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """A series' labels without its name, which a recorded one has and a calculated one lacks."""
    return tuple(sorted((key, value) for key, value in labels.items() if key != "__name__"))
