"""One log line when a finding opens and one when it closes. Names requests by serial only, never by the client's id."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kvledger_agent.finding import Finding
from kvledger_agent.findings import CauseKey, cause_key, merged
from kvledger_agent.observation import Observation

logger = logging.getLogger(__name__)


class FindingLog:
    """The findings that are open as far as they have been logged, engine by engine."""

    def __init__(self) -> None:
        self._open: dict[str, dict[CauseKey, Finding]] = {}

    def note(self, observations: Iterable[Observation], *, sources: Iterable[str]) -> None:
        """Log what has opened and closed since the last round.

        An engine among the `sources` that could not be read keeps its findings; one that is no source now has none.
        """
        seen = {observation.identity.key: observation for observation in observations}
        known = {key: self._open.get(key, {}) for key in sources}
        for key in self._open.keys() - known.keys():
            self._log(key, self._open[key], {})
        for key, observation in seen.items():
            now = {cause_key(finding): finding for finding in merged(observation.findings or ())}
            self._log(key, known.get(key, {}), now)
            known[key] = now
        self._open = known

    @staticmethod
    def _log(engine: str, before: dict[CauseKey, Finding], now: dict[CauseKey, Finding]) -> None:
        for key, finding in now.items():
            if key not in before:
                logger.warning("engine=%s finding=%s state=opened %s", engine, finding.kind.word, _evidence(finding))
        for key, finding in before.items():
            if key not in now:
                logger.info("engine=%s finding=%s state=closed %s", engine, finding.kind.word, _evidence(finding))


def _evidence(finding: Finding) -> str:
    if finding.blind is not None:
        return f"blocks={_number(finding.block_count)} certainty={finding.certainty.word}"
    owner = "unknown" if finding.owner is None else finding.owner.serial
    candidates = ",".join(str(ref.serial) for ref in finding.candidates) or "none"
    return f"blocks={_number(finding.block_count)} publication={finding.seq} owner={owner} candidates={candidates}"


def _number(count: int | None) -> str:
    return "unknown" if count is None else str(count)
