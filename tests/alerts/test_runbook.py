"""The runbook: a page per alert, whose every command runs in the alert's scene and shows the cause."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvledger_alerts.rules import alert_names
from kvledger_alerts.runbook_pages import DECISIONS, RUNBOOK, SECTIONS, page_names, parse_page, read_page
from tests.alerts.scenes import SCENES
from tests.engine.server.process import environment
from tests.reliability.processes import AgentProcess


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert page_names() == tuple(sorted(alert_names()))
    assert set(SCENES) == set(alert_names())


@pytest.mark.parametrize("name", alert_names())
def test_a_page_has_the_alerts_name_five_sections_and_ends_in_decisions(name: str) -> None:
    page = read_page(name)
    assert page.title == name
    assert tuple(page.sections) == SECTIONS
    assert all(text.strip() for text in page.sections.values())
    assert page.decisions
    assert set(page.decisions) <= set(DECISIONS)
    assert len(page.decisions) == page.sections["Decision"].count("\n- ") + page.sections["Decision"].startswith("- ")


@pytest.mark.parametrize("name", alert_names())
def test_every_command_is_followed_by_what_to_look_for(name: str) -> None:
    page = read_page(name)
    assert page.sections["Diagnosis"].count("```sh\n") == len(page.checks) >= 1
    assert all(check.signs for check in page.checks)


@pytest.mark.parametrize("name", page_names())
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (RUNBOOK / f"{name}.md").read_text()):
        assert (RUNBOOK / target).exists(), target


def test_a_block_without_a_sentence_after_it_shows_nothing() -> None:
    page = parse_page(
        "# A\n\n## Diagnosis\n\n```sh\ntrue\n```\n\nText with `word`.\n\n## Decision\n\n- **throttle** it\n"
    )
    assert [(c.commands, c.signs) for c in page.checks] == [("true\n", ())]
    assert page.decisions == ("throttle",)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("tmpfs")
@pytest.mark.needs("curl")
@pytest.mark.parametrize("name", alert_names())
def test_every_command_of_a_page_runs_in_its_scene_and_shows_the_cause(name: str, memory: Path, tmp_path: Path) -> None:
    script = tmp_path / "kvledger"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvledger_agent "$@"\n')
    script.chmod(0o755)
    with AgentProcess(memory) as agent, SCENES[name](memory, agent):
        shell = environment() | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "AGENT": agent.url,
            "ENGINE": "engine:0",
            "KVLEDGER_DIR": str(memory),
            "TMPDIR": str(tmp_path),
            "COLUMNS": "120",
        }
        for check in read_page(name).checks:
            ran = subprocess.run(["bash", "-c", check.commands], env=shell, capture_output=True, text=True, timeout=60)
            output = ran.stdout + ran.stderr
            missing = [sign for sign in check.signs if sign not in output]
            assert not missing, f"{check.commands}\ndoes not show {missing}:\n{output}"
            assert "Traceback" not in output
