"""The storm drill: the embedded model behind real HTTP, with disconnects, timeouts and reconnects on the real clock.

What virtual time cannot show: sockets that close in the middle of a step, steps of uneven length, an agent that samples
whenever it does. No page may show a finding, and nothing may be held afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.reliability.pages import Page, false_alarms, is_at_rest, samples_of, total
from tests.reliability.processes import AgentProcess, EngineProcess, LoadProcess

ENGINE = (
    "--model embedded --blocks 110 --max-num-seqs 32 --max-num-batched-tokens 512 --max-model-len 1024 "
    "--step-time base=15ms,seq=200us"
)
LOAD = "--requests {requests} --rate 40 --length-scale 0.4 --drain 40"
REQUESTS_PER_STORM = 500
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class StormResult:
    """All storms. `lost` are sequences the engine took in and never ended; `held` the blocks active at the end."""

    storms: int = 0
    sent: int = 0
    cancellations: int = 0
    preemptions: int = 0
    pages: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """No finding, everything given back, and the storms were storms."""
        return not self.complaints and self.cancellations > 0 and self.preemptions > 0


def run_storms(directory: Path, *, requests: int, tick: Callable[[], None] = lambda: None) -> StormResult:
    """So many requests in storms of at most `REQUESTS_PER_STORM`, each with a seed of its own, on one engine."""
    result = StormResult()
    with EngineProcess(directory, ENGINE) as engine, AgentProcess(directory) as agent:
        for first in range(0, requests, REQUESTS_PER_STORM):
            count = min(REQUESTS_PER_STORM, requests - first)
            with LoadProcess(engine.url, seed=result.storms, flags=LOAD.format(requests=count)) as load:
                while load.running:
                    _look(agent, result)
                    time.sleep(POLL_SECONDS)
            result.storms += 1
            result.sent += int(load.report["sent"])
            _check_rest(agent, result)
            tick()
    return result


def _look(agent: AgentProcess, result: StormResult) -> Page:
    text = agent.page()
    if text is None:
        return {}
    page = samples_of(text)
    result.pages += 1
    result.complaints += false_alarms(page)
    return page


def _check_rest(agent: AgentProcess, result: StormResult) -> None:
    """After a storm: idle, nothing active, and every request that was sent has an end or a refusal."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_at_rest(page := _look(agent, result)):
        if time.monotonic() > deadline:
            result.complaints.append(f"storm {result.storms}: not at rest within {PATIENCE_SECONDS} s")
            return
        time.sleep(POLL_SECONDS)
    result.cancellations = int(total(page, "kvledger_cancellations_total"))
    result.preemptions = int(total(page, "kvledger_preemptions_total"))
    ended = total(page, "kvledger_requests_total") + total(page, "kvledger_rejections_total")
    if ended > result.sent or total(page, "kvledger_requests_live"):
        result.complaints.append(f"storm {result.storms}: {ended:.0f} ended of {result.sent} sent, and some still live")
