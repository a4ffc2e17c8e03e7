"""What the agent logs of findings: their opening and their end, once each, without the client's ids."""

from __future__ import annotations

import pytest

from kvledger_agent.finding_log import FindingLog
from kvledger_agent.observation import Observation
from tests.agent.rig import ToyWatch
from tests.agent.test_evidence import findings_after_the_grace, leaking_engine


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kvledger_agent.finding_log")


def states(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The states in the lines logged since the last call."""
    found = [word for line in caplog.messages for word in line.split() if word.startswith("state=")]
    caplog.clear()
    return found


def test_a_finding_is_logged_once_when_it_opens_and_once_when_it_closes(caplog: pytest.LogCaptureFixture) -> None:
    watch, log = ToyWatch(), FindingLog()
    blocks = watch.skip_free(watch.admit(2))
    leaking = watch.looks(5)
    key = leaking.identity.key

    log.note((leaking,), sources=[key])
    assert caplog.messages[0].startswith(f"engine={key} finding=excess_reference state=opened blocks={len(blocks)} ")
    assert states(caplog) == ["state=opened"]
    log.note((watch.look(),), sources=[key])
    assert states(caplog) == []

    restarted = ToyWatch().look()
    log.note((restarted,), sources=[key])
    assert states(caplog) == ["state=closed"]


def test_an_engine_that_cannot_be_read_keeps_its_findings_and_one_that_is_gone_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, log = ToyWatch(), FindingLog()
    watch.skip_free(watch.admit(2))
    leaking = watch.looks(5)
    key = leaking.identity.key
    log.note((leaking,), sources=[key])
    assert states(caplog) == ["state=opened"]

    log.note((), sources=[key])
    log.note((watch.look(),), sources=[key])
    assert states(caplog) == []

    log.note((), sources=[])
    assert states(caplog) == ["state=closed"]


def test_requests_are_named_by_serial_only(caplog: pytest.LogCaptureFixture) -> None:
    observation: Observation = findings_after_the_grace(leaking_engine())

    FindingLog().note((observation,), sources=[observation.identity.key])

    serials = {ref.serial for f in observation.findings or () for ref in (f.owner, *f.candidates) if ref is not None}
    assert all(f"={serial}" in caplog.text for serial in serials)
    assert "leaker" not in caplog.text
    assert "acme" not in caplog.text
