"""docs/reliability.md from the results of the drills. Formats; runs nothing."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from tests.reliability.clean import CleanResult
from tests.reliability.faults import DEADLINE_SECONDS, GRACE_SECONDS, FaultResult
from tests.reliability.kills import DEADLINE_SECONDS as KILL_DEADLINE_SECONDS
from tests.reliability.kills import KillResult
from tests.reliability.stops import STILL_STOPPED_SECONDS, StopResult
from tests.reliability.storms import StormResult

HEAD = """# Reliability: the drills and what they showed

Written by `make reliability`; every number on this page was measured by that run. A tenth of every drill is part of
`make test`. How the drills work is in `tests/reliability/`; what each finding means, in [findings.md](findings.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestDrills:
    """Outcome of `pytest -m drill`: test name -> seconds it took, and the names of those that failed."""

    __test__ = False

    seconds: dict[str, float]
    failed: tuple[str, ...]

    @classmethod
    def parse(cls, output: str) -> TestDrills:
        """From a JUnit report somewhere in pytest's output. Raises ValueError when there is none."""
        start, end = output.find("<testsuites"), output.find("</testsuites>")
        if start < 0 or end < 0:
            raise ValueError(f"pytest wrote no report: {output[-500:]!r}")
        cases = list(ElementTree.fromstring(output[start:end] + "</testsuites>").iter("testcase"))
        return cls(
            seconds={str(case.get("name")): float(case.get("time") or 0) for case in cases},
            failed=tuple(
                str(c.get("name")) for c in cases if c.find("failure") is not None or c.find("error") is not None
            ),
        )


@dataclass(slots=True)
class Drills:
    """The results of one run of all drills."""

    faults: list[FaultResult] = field(default_factory=list)
    clean: list[CleanResult] = field(default_factory=list)
    stops: StopResult | None = None
    kills: KillResult | None = None
    storms: StormResult | None = None
    tests: TestDrills | None = None

    def runs(self) -> int:
        """Everything that was run, in rounds."""
        stops = self.stops.rounds if self.stops else 0
        kills = self.kills.engine_kills + self.kills.agent_kills if self.kills else 0
        storms = self.storms.storms if self.storms else 0
        tests = len(self.tests.seconds) if self.tests else 0
        return len(self.faults) + len(self.clean) + stops + kills + storms + tests

    def failures(self) -> list[str]:
        """Every run that did not show what it should, in words."""
        found = [str(result) for result in self.faults if not result.passed]
        found += [str(result) for result in self.clean if not result.passed]
        for name, drill in (("stops", self.stops), ("kills", self.kills), ("storms", self.storms)):
            if drill is not None and not drill.passed:
                found += [
                    f"{name}: {complaint}" for complaint in drill.complaints or ["what it is about did not happen"]
                ]
        return found + ([f"test failed: {name}" for name in self.tests.failed] if self.tests else [])


def write_report(path: Path, drills: Drills, *, minutes: float) -> None:
    """Write the page."""
    failures = drills.failures()
    verdict = "All passed." if not failures else "Failed:\n\n" + "\n".join(f"- {failure}" for failure in failures)
    parts = [HEAD, _machine(minutes), f"{drills.runs()} runs. {verdict}\n"]
    parts += [_faults(drills.faults), _clean(drills.clean)]
    parts += [_stops(drills.stops)] if drills.stops else []
    parts += [_kills(drills.kills)] if drills.kills else []
    parts += [_storms(drills.storms)] if drills.storms else []
    parts += [_tests(drills.tests)] if drills.tests else []
    path.write_text("\n".join(parts))


def _machine(minutes: float) -> str:
    return (
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release().split('-')[0]}; "
        f"Python {platform.python_version()}, numpy {np.__version__}. It took {minutes:.0f} minutes.\n"
    )


def _faults(results: list[FaultResult]) -> str:
    lines = [
        "## Faults\n",
        "One defect in a storm of arrivals, shared prefixes, forks, cancellations and reconnects, at a random block",
        "and time; the engine on a virtual clock, the agent sampling once a second of it. Found means: on the agent's",
        f"`/metrics`, as a finding that findings.md promises, naming the block, within {DEADLINE_SECONDS:.0f} s",
        f"(the grace of {GRACE_SECONDS:.0f} s and two samples) of the ledger's clock.\n",
        "| fault | runs | found | seconds to the finding: median | slowest | first shown as (runs) |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(result.kind for result in results):
        lines.append(_fault_row(kind, [result for result in results if result.kind == kind]))
    return "\n".join(lines) + "\n"


def _fault_row(kind: str, results: list[FaultResult]) -> str:
    seconds = [r.seconds_to_finding for r in results if r.passed and r.seconds_to_finding is not None]
    shown = Counter(word for r in results for word in r.shown_as)
    middle, slowest = (f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}") if seconds else ("–", "–")
    words = ", ".join(f"`{word}` ({count})" for word, count in shown.most_common())
    return f"| `{kind}` | {len(results)} | {sum(r.passed for r in results)} | {middle} | {slowest} | {words} |"


def _clean(results: list[CleanResult]) -> str:
    total = {name: int(sum(getattr(r, name) for r in results)) for name in ("requests", "cancellations", "preemptions")}
    return (
        "## Clean storms\n\n"
        f"{len(results)} storms without a defect, on a virtual clock, each sampled every second and then drained: "
        f"{total['requests']:,} sequences, {total['cancellations']:,} cancellations, "
        f"{total['preemptions']:,} preemptions, {sum(r.samples for r in results):,} samples. Findings: "
        f"{sum(len(r.findings) for r in results)}. Samples in which a count did not add up: "
        f"{int(sum(r.violations for r in results))}. Blocks active after the drains: "
        f"{int(sum(r.active_blocks_after for r in results))}.\n"
    )


def _stops(result: StopResult) -> str:
    return (
        "## Stops and idle aborts\n\n"
        f"{result.rounds} storms over HTTP on the real clock; in each the engine core was stopped (SIGSTOP) until that "
        f"was seen and {STILL_STOPPED_SECONDS:.0f} s more, and went on. Shown as `frozen`: {result.frozen_seen} of "
        f"{result.rounds}. Then one request alone, dropped by its client in mid-stream ({result.idle_aborts} times). "
        f"{result.requests:,.0f} sequences, {result.pages:,} pages read; findings and broken counts on them: "
        f"{len(result.complaints)}.\n"
    )


def _kills(result: KillResult) -> str:
    seen = result.seconds_to_seen
    return (
        "## Kills\n\n"
        f"`kill -9` of a storming engine {result.engine_kills} times, {result.kills_inside_publication} of them at a "
        "random store into the ledger, hence inside a publication, each followed by a restart that inherits the "
        f"counters; `kill -9` of the agent {result.agent_kills} times. Seen dead after: median "
        f"{statistics.median(seen):.2f} s, slowest {max(seen):.2f} s (promised: {KILL_DEADLINE_SECONDS:.0f} s). "
        f"{result.pages:,} pages read; torn states, counters that went back and false findings on them: "
        f"{len(result.complaints)}.\n"
    )


def _storms(result: StormResult) -> str:
    return (
        "## Storms on the embedded model\n\n"
        f"{result.storms} storms over HTTP on the real clock, with the embedded model in torch: {result.sent:,} "
        f"requests sent, {result.cancellations:,} sequences cancelled by clients that went away, "
        f"{result.preemptions:,} preemptions, {result.pages:,} pages read. Findings, broken counts, requests without "
        f"an end and blocks still active after a storm: {len(result.complaints)}.\n"
    )


def _tests(result: TestDrills) -> str:
    lines = ["## Drills of single modules\n", "| test (`pytest -m drill`) | passed | seconds |", "|---|---|---|"]
    for name, seconds in sorted(result.seconds.items()):
        lines.append(
            f"| {name.removeprefix('test_').replace('_', ' ')} | {name not in result.failed} | {seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"
