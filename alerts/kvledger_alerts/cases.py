"""What a promtool test is made of: series of one engine, moments, and what fires at them. Labels as on a real page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

INTERVAL_SECONDS = 15
SCRAPED: Mapping[str, str] = MappingProxyType({"instance": "agent:9470", "job": "kvledger"})
ENGINE: Mapping[str, str] = MappingProxyType({"engine": "golden", "model": "cell", "rank": "0"})
POOL: Mapping[str, str] = MappingProxyType({**ENGINE, "pool": "gpu"})
WHO = f"{ENGINE['engine']}:{ENGINE['rank']} at {SCRAPED['instance']}"
"""What descriptions call the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series: a sample every interval of its case, in promtool's notation."""

    name: str
    labels: Mapping[str, str]
    values: str

    @property
    def selector(self) -> str:
        """The series as promtool takes it, with the labels that a scrape adds."""
        labels = ",".join(f'{key}="{value}"' for key, value in sorted({**self.labels, **SCRAPED}.items()))
        return f"{self.name}{{{labels}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """One firing alert: the labels besides the scrape's, and its description."""

    labels: Mapping[str, str]
    description: str
    scraped: Mapping[str, str] = field(default_factory=lambda: SCRAPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test: at each of `moments` (`4m`) exactly those alerts of the given name fire.

    The title of a case in which none fires is the false alarm that it would be. Hours and days are told in longer
    intervals, and promtool's tests of each interval are a file of their own.
    """

    alert: str
    title: str
    series: tuple[Series, ...]
    moments: Mapping[str, tuple[Firing, ...]]
    interval_seconds: int = INTERVAL_SECONDS


def steady(value: float, samples: int = 80) -> str:
    """The same value for `samples` intervals (20 minutes unless told otherwise)."""
    return f"{value:g}+0x{samples - 1}"


def missing(samples: int) -> str:
    """No sample: a failed scrape, or a series that is not there."""
    return f"_x{samples}"


def growing(per_sample: float, samples: int = 80, start: float = 0) -> str:
    """A counter that grows evenly."""
    return f"{start:g}+{per_sample:g}x{samples - 1}"


def engine(name: str, values: str, **labels: str) -> Series:
    """A series of the engine."""
    return Series(name=f"kvledger_{name}", labels={**ENGINE, **labels}, values=values)


def pool(name: str, values: str, **labels: str) -> Series:
    """A series of the engine's pool."""
    return Series(name=f"kvledger_{name}", labels={**POOL, **labels}, values=values)


def up(values: str) -> Series:
    """The scrape itself."""
    return Series(name="up", labels={}, values=values)


def warning(said: str, **labels: str) -> Firing:
    """A warning of the engine; `said` follows its name."""
    return Firing(labels={**ENGINE, "severity": "warning", **labels}, description=f"Engine {WHO}{said}")


def critical(said: str, **labels: str) -> Firing:
    """The same as critical."""
    return Firing(labels={**ENGINE, "severity": "critical", **labels}, description=f"Engine {WHO}{said}")


def quiet(
    alert: str,
    moments: str,
    false_alarms: Mapping[str, tuple[Series, ...]],
    *,
    interval_seconds: int = INTERVAL_SECONDS,
) -> tuple[Case, ...]:
    """A case for each false alarm, title to series, in which nothing fires at any of `moments` (`5m 10m`)."""
    return tuple(
        Case(
            alert=alert,
            title=title,
            series=series,
            moments=silent(*moments.split()),
            interval_seconds=interval_seconds,
        )
        for title, series in false_alarms.items()
    )


def silent(*moments: str) -> dict[str, tuple[Firing, ...]]:
    """Nothing fires at any of these."""
    return dict.fromkeys(moments, ())
