"""Sharing that costs more than it saves, live: prompts that share nothing pay for look-ups and get nothing for them."""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kvledger.words import Reason
from kvledger_agent.notes import LEAST_ADMISSIONS
from tests.reliability.processes import AgentProcess
from tests.verdict.live import watched
from tests.verdict.load import Stream
from tests.verdict.scenario import Scenario

pytestmark = [pytest.mark.needs("tmpfs"), pytest.mark.slow, pytest.mark.e2e]
NOTE, MOST_SECONDS = "sharing_costs_more", 60.0


def scene(stream: Stream) -> Scenario:
    return Scenario(
        name="sharing", reason=Reason.LIGHT, says="", neighbours=(), flags="--blocks 2048", streams=(stream,)
    )


def asked(agent: AgentProcess, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{agent.url}/v1/engines{path}", timeout=5) as answer:
        document: dict[str, Any] = json.loads(answer.read())
    return document


def settled(agent: AgentProcess) -> dict[str, Any]:
    """The snapshot of an engine whose account of sharing has enough admissions in it to say something."""
    deadline, pause = time.monotonic() + MOST_SECONDS, threading.Event()
    while True:
        (engine,) = asked(agent, "")["engines"]
        document = asked(agent, f"/{engine['id']}/snapshot")
        sharing = document.get("sharing")
        if sharing and sharing["admissions"] >= 2 * LEAST_ADMISSIONS and sharing["net_seconds"] is not None:
            return document
        assert time.monotonic() < deadline, document.get("sharing")
        pause.wait(0.2)


@pytest.mark.parametrize(("prefix", "notes"), [(0, [NOTE]), (384, [])], ids=["nothing alike", "much alike"])
def test_prompts_that_share_nothing_are_noted_and_those_that_share_much_are_not(prefix: int, notes: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="kvledger-sharing-", dir="/dev/shm") as directory,
        watched(scene(Stream(clients=8, prompt=400, tokens=4, prefix=prefix)), Path(directory)) as agent,
    ):
        document = settled(agent)
        page = agent.page()

    assert [note["kind"] for note in document["notes"]] == notes
    assert document["findings"] == []
    assert (document["sharing"]["net_seconds"] < 0) == bool(notes)
    assert page is not None
    (line,) = (line for line in page.splitlines() if line.startswith("kvledger_notes{") and NOTE in line)
    assert float(line.split()[-1]) == len(notes)
