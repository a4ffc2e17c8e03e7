"""The fault drill: one seeded defect in a virtual engine, found by the agent's own loop from the file alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.finding import Finding
from kvledger_engine.faults import FaultKind
from tests.reliability.pages import samples_of
from tests.reliability.promises import promised_findings
from tests.reliability.virtual import EngineHandle, Progress, VirtualRun
from tests.reliability.workload import StormShape

INTERVAL_SECONDS = 1.0
GRACE_SECONDS = 3.0  # max(2 s, 3 samples, 20 x p99 step) with 1 s samples and steps far below 150 ms
DEADLINE_SECONDS = GRACE_SECONDS + 2 * INTERVAL_SECONDS
STORM_SECONDS = 40.0
LONG_FORKS = StormShape(
    rate=1.2, cancel_share=0.0, fork_share=1.0, prompt_tokens=(4, 60), output_tokens=(330, 340), prefix_share=0.3
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """One run. `seconds_to_finding` is ledger time from the fault to its finding on the page; None: not found."""

    kind: str
    seed: int
    fired: bool
    seconds_to_finding: float | None
    shown_as: tuple[str, ...]
    trouble: str | None

    @property
    def passed(self) -> bool:
        """The fault happened, and was found as promised, in time, with its evidence."""
        return self.fired and self.trouble is None


def fault_run(kind: FaultKind, seed: int, directory: Path) -> VirtualRun:
    """The life of an engine in which `kind` happens at a random opportunity and so at a random block and time."""
    rng = random.Random(f"{kind}/{seed}")
    shared_write = kind is FaultKind.MISSING_COPY_ON_WRITE
    return VirtualRun(
        directory=directory,
        seed=seed,
        storm_seconds=STORM_SECONDS,
        fault=kind.value,
        fault_after=rng.randint(0, 6),
        capacity_blocks=1600 if shared_write else 160,
        shape=LONG_FORKS if shared_write else StormShape(),
    )


def run_fault(engine: EngineHandle, kind: FaultKind, seed: int, directory: Path) -> FaultResult:
    """Drive one run to its finding, or past the time by which there must have been one."""
    engine.start(fault_run(kind, seed, directory))
    agent = Agent(AgentConfig(directory=directory, interval_seconds=INTERVAL_SECONDS))
    try:
        return _watch(kind, seed, agent, _seconds(engine, agent))
    finally:
        agent.close()
        engine.close()


def _seconds(engine: EngineHandle, agent: Agent) -> Iterator[Progress]:
    for _ in range(int(STORM_SECONDS + DEADLINE_SECONDS + 5)):
        progress = engine.advance(INTERVAL_SECONDS)
        agent.sample_once()
        yield progress


def _watch(kind: FaultKind, seed: int, agent: Agent, seconds: Iterator[Progress]) -> FaultResult:
    def result(fired: bool, after: float | None, shown: tuple[str, ...], trouble: str | None) -> FaultResult:
        return FaultResult(
            kind=kind.value, seed=seed, fired=fired, seconds_to_finding=after, shown_as=shown, trouble=trouble
        )

    for progress in seconds:
        shown = shown_kinds(agent)
        if progress.fired_ns is None:
            if shown:
                return result(False, None, shown, f"{shown} shown before the fault")
            continue
        elapsed = (progress.now_ns - progress.fired_ns) / NS_PER_SECOND
        if shown:
            return result(True, elapsed, shown, _trouble(kind, agent, progress, elapsed, shown))
        if elapsed > DEADLINE_SECONDS:
            return result(True, None, (), f"not found {elapsed:.2f} s after it happened")
    return result(False, None, (), "the fault had no opportunity")


def shown_kinds(agent: Agent) -> tuple[str, ...]:
    """The kinds of finding on the agent's `/metrics` page right now."""
    page = samples_of(agent.metrics_text(), "kvledger_findings")
    return tuple(sorted(labels["kind"] for labels, value in page.get("kvledger_findings", []) if value > 0))


def findings_of(agent: Agent) -> tuple[Finding, ...]:
    """The findings behind the page, with their evidence."""
    return tuple(f for o in agent.fleet.observations for f in o.findings or ())


def _trouble(kind: FaultKind, agent: Agent, progress: Progress, elapsed: float, shown: tuple[str, ...]) -> str | None:
    """What the finding lacks, None when it is as promised."""
    promised = {finding.word for finding in promised_findings()[kind.value]}
    if not set(shown) & promised:
        return f"shown as {shown}, promised was one of {sorted(promised)}"
    if elapsed > DEADLINE_SECONDS:
        return f"found {elapsed:.2f} s after it happened, later than {DEADLINE_SECONDS} s"
    naming = [f for f in findings_of(agent) if progress.fired_block in f.blocks]
    if not naming:
        return f"no finding names block {progress.fired_block}"
    if not any(f.owner or f.candidates or f.known for f in naming):
        return "neither an owner nor candidates nor a word on why"
    return None
