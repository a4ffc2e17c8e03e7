"""The clean drill: storms without a defect. One finding in any of them is a false alarm, and fails the drill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from tests.reliability.faults import INTERVAL_SECONDS, findings_of
from tests.reliability.pages import Page, samples_of
from tests.reliability.virtual import EngineHandle, VirtualRun

STORM_SECONDS = 20.0
LONGEST_DRAIN_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """One storm: what it shook, and what (nothing, it is hoped) was found or left."""

    seed: int
    samples: int
    requests: float
    cancellations: float
    preemptions: float
    findings: tuple[str, ...]
    violations: float
    active_blocks_after: float
    drained: bool

    @property
    def passed(self) -> bool:
        """Not one finding, no count identity broken, nothing held after."""
        return self.drained and not self.findings and not self.violations and not self.active_blocks_after


def run_clean(engine: EngineHandle, seed: int, directory: Path) -> CleanResult:
    """One storm, sampled every second, then the drain."""
    engine.start(VirtualRun(directory=directory, seed=seed, storm_seconds=STORM_SECONDS))
    agent = Agent(AgentConfig(directory=directory, interval_seconds=INTERVAL_SECONDS))
    found: list[str] = []
    violations, samples, drained = 0.0, 0, False
    try:
        while samples < STORM_SECONDS + LONGEST_DRAIN_SECONDS and not drained:
            progress = engine.advance(INTERVAL_SECONDS)
            agent.sample_once()
            samples += 1
            found += [f.kind.word for f in findings_of(agent)]
            page = samples_of(agent.metrics_text(), "kvledger_invariant_violations")
            violations += sum(abs(value) for _, value in page["kvledger_invariant_violations"])
            drained = samples > STORM_SECONDS and not progress.has_work
        page = samples_of(agent.metrics_text())
    finally:
        agent.close()
        engine.close()
    return CleanResult(
        seed=seed,
        samples=samples,
        requests=_total(page, "kvledger_requests_total"),
        cancellations=_total(page, "kvledger_cancellations_total"),
        preemptions=_total(page, "kvledger_preemptions_total"),
        findings=tuple(found),
        violations=violations,
        active_blocks_after=sum(v for labels, v in page["kvledger_pool_blocks"] if labels["state"] == "active"),
        drained=drained,
    )


def _total(page: Page, name: str) -> float:
    return sum(value for _, value in page.get(name, []))
