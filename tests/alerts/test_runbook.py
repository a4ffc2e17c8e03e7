"""The runbook: a page per alert, whose every command runs in the alert's scene and shows the cause."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvledger_alerts.places import PLACES
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.rules import alert_names
from kvledger_alerts.runbook_pages import DECISIONS, RUNBOOK, SECTIONS, TO_WRITE, TRIAGE, skeleton
from kvledger_alerts.table import AlertRow, Parameters, runbook_url
from kvledger_dashboards import explorer
from tests.alerts.runbook_reading import CHECKLIST, Check, page_names, parse_page, read_page
from tests.alerts.scenes import SCENES, Scene, calm, prefilling, value
from tests.dashboards.boards import BOARDS
from tests.engine.server.process import EngineProcess, environment
from tests.reliability.processes import AgentProcess

EXPLORER = Path(explorer.__file__).parent


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert page_names() == tuple(sorted(alert_names()))
    assert set(SCENES) == set(PLACES) == set(alert_names())


@pytest.mark.parametrize("name", alert_names())
def test_a_page_has_the_alerts_name_its_places_its_sections_and_ends_in_decisions(name: str) -> None:
    page = read_page(name)
    assert page.title == name
    assert page.head == PLACES[name].line()
    assert tuple(page.sections) == SECTIONS
    assert all(text.strip() for text in page.sections.values())
    assert page.decisions
    assert set(page.decisions) <= set(DECISIONS)
    assert len(page.decisions) == page.sections["Decision"].count("\n- ") + page.sections["Decision"].startswith("- ")


@pytest.mark.parametrize("name", alert_names())
def test_every_command_is_followed_by_what_to_look_for(name: str) -> None:
    page = read_page(name)
    fenced = {section: text.count("```sh\n") for section, text in page.sections.items()}
    assert fenced["First look"] == 1, "the first command stands at the top, before what is to be understood"
    assert fenced["Diagnosis"] >= 1
    assert 1 + fenced["Diagnosis"] + fenced["Mitigation"] == len(page.checks) == sum(fenced.values())
    assert all(check.signs for check in page.checks)


@pytest.mark.parametrize("row", alert_rows(Parameters()), ids=lambda row: f"{row.name}-{row.severity}")
def test_the_page_of_a_new_alert_begins_with_its_sections_and_says_what_is_to_be_written(row: AlertRow) -> None:
    page = parse_page(skeleton(row))
    assert page.title == row.name
    assert tuple(page.sections) == SECTIONS
    assert page.decisions == DECISIONS
    assert page.checks[0].signs == (TO_WRITE,)
    assert TO_WRITE not in (RUNBOOK / f"{row.name}.md").read_text(), "a page that nobody has written yet"


def test_the_triage_leads_to_every_alert_that_is_about_a_bottleneck_and_says_when_not_to_scale() -> None:
    text = (RUNBOOK / f"{TRIAGE}.md").read_text()
    linked = set(re.findall(r"\]\((\w+)\.md\)", text))
    apart = {
        "KvledgerRejections",
        "KvledgerAvailabilitySloBurn",
        "KvledgerPoolExhaustionPredicted",
        "KvledgerTelemetryLost",
    }
    assert linked & set(alert_names()) == set(alert_names()) - apart
    assert "## When not to scale" in text
    assert all(f"*{decision}*" in text for decision in DECISIONS)


def test_every_question_of_the_triage_leads_on_once_and_every_other_answer_ends_in_a_page_and_a_decision() -> None:
    text = (RUNBOOK / f"{TRIAGE}.md").read_text().partition("## When not to scale")[0]
    asked = re.findall(r"^(\d)\. \*\*[^*]+\?\*\*.*\n((?: {3}.+\n)+)", text, re.MULTILINE)
    assert [int(number) for number, _ in asked] == list(range(1, len(asked) + 1))
    for number, below in asked:
        *ends, on = re.findall(r"^ {3}- (.+(?:\n {5}.+)*)", below, re.MULTILINE)
        assert on.endswith(f" → {int(number) + 1}") or int(number) == len(asked), on
        for end in ends:
            assert "](Kvledger" in end, end
            assert any(f"→ *{decision}*" in end or f": *{decision}*" in end for decision in DECISIONS), end


@pytest.mark.parametrize("name", alert_names())
def test_an_alerts_link_leads_to_its_page_the_page_to_its_panel_and_to_a_page_of_the_explorer(name: str) -> None:
    (row,) = {row.name for row in alert_rows(Parameters()) if row.name == name}
    base, _, page = runbook_url(row, Parameters().runbook_base).rpartition("/")
    assert f"{base}/" == Parameters().runbook_base
    assert (RUNBOOK / f"{page}.md").exists()
    found = re.findall(r"`\$GRAFANA/d/([\w-]+)\?viewPanel=(\d+)` \(\*(.+?)\*\)", read_page(name).head)
    ((board, panel, title),) = found
    assert {each["id"]: each["title"] for each in BOARDS[board]["panels"]}[int(panel)] == title
    (page,) = re.findall(r"`\$EXPLORER/([a-z_]*)(?:\?engine=\$ENGINE)?`", read_page(name).head)
    assert (EXPLORER / "app_pages" / f"{page or 'overview'}.py").exists()


@pytest.mark.parametrize("name", [*page_names(), TRIAGE, CHECKLIST])
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (RUNBOOK / f"{name}.md").read_text()):
        assert (RUNBOOK / target).exists(), target


def test_a_block_without_a_sentence_after_it_shows_nothing() -> None:
    page = parse_page(
        "# A\n\n## Diagnosis\n\n```sh\ntrue\n```\n\nText with `word`.\n\n## Decision\n\n- **throttle** it\n"
    )
    assert [(c.commands, c.signs) for c in page.checks] == [(("true",), ())]
    assert page.decisions == ("throttle",)


@pytest.mark.parametrize(
    ("sign", "shown", "not_shown"),
    [
        ("a{…} 0", 'a{pool="gpu"} 0.0', 'a{pool="gpu"} 0.5'),
        ("a{…} 1", 'a{pool="gpu"} 1.0', 'a{pool="gpu"} 10.0'),
        ('a{…kind="b"…} N', 'a{engine="e",kind="b",rank="0"} 12.0', 'a{engine="e",kind="b",rank="0"} 0.0'),
        ("waiting for pool N", "│ waiting for  pool 3", "│ waiting for  none\npool 3"),
        ('"blocks":N', '{"blocks":2}', '{"blocks":0}'),
    ],
)
def test_a_sign_holds_a_value_and_not_a_name_alone(sign: str, shown: str, not_shown: str) -> None:
    check = Check(commands=("true",), signs=(sign,))
    assert check.missing(shown) == []
    assert check.missing(not_shown) == [sign]


# -- in real scenes ---------------------------------------------------------------------------------------------------

TROUBLE = re.compile(r"│ (leaking|stalled|frozen)[: ]|not_a_ledger: ")
"""What `kvledger status` and `kvledger snapshot` end with exit code 1 for."""


class Shell:
    """Where a person diagnoses from: the variables of the runbook's README, and `kvledger` on the PATH."""

    def __init__(self, place: Path, agent: AgentProcess, ledgers: Path, url: str = "") -> None:
        script = place / "kvledger"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvledger_agent "$@"\n')
        script.chmod(0o755)
        self._variables = environment() | {
            "PATH": f"{place}:{os.environ['PATH']}",
            "AGENT": agent.url,
            "ENGINE": "engine:0",
            "URL": url,
            "KVLEDGER_DIR": str(ledgers),
            "TMPDIR": str(place),
            "COLUMNS": "120",
        }

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """One line, with what it says on stderr in its output."""
        return subprocess.run(
            ["bash", "-c", line],
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )

    def show(self, check: Check) -> str:
        """The output of all lines of a block, each of which has to end as it should and to say something."""
        outputs = []
        for line in check.commands:
            ran = self.run(line)
            assert ran.returncode == expected_code(line, ran.stdout), f"{line}\n{ran.returncode}: {ran.stdout}"
            assert ran.stdout.strip() or line.startswith("kill "), f"{line}\nsays nothing"
            assert "Traceback" not in ran.stdout
            outputs.append(ran.stdout)
        return "".join(outputs)


def expected_code(line: str, output: str) -> int:
    """0, but 1 for trouble that `kvledger` shows itself, and what curl has for an address where nobody listens."""
    if line.startswith("curl") and "Failed to connect" in output:
        return 7
    judged = re.search(r"kvledger (status|snapshot)", line) and not re.search(r"--save|\|", line)
    return int(bool(judged and TROUBLE.search(output)))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("tmpfs")
@pytest.mark.needs("curl")
@pytest.mark.parametrize("scene", list(dict.fromkeys(SCENES.values())), ids=lambda scene: scene.__name__)
def test_every_command_of_a_page_runs_in_its_scene_and_shows_the_cause(
    scene: Scene, memory: Path, tmp_path: Path
) -> None:
    with AgentProcess(memory) as agent, scene(memory, agent) as another:
        shell = Shell(tmp_path, another or agent, memory)
        for name in (name for name, its in SCENES.items() if its is scene):
            for check in read_page(name).checks:
                output = shell.show(check)
                missing = check.missing(output)
                assert not missing, f"{name}: {check.commands}\ndoes not show {missing}:\n{output}"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("tmpfs")
@pytest.mark.needs("curl")
@pytest.mark.parametrize("name", [TRIAGE, CHECKLIST])
def test_every_command_of_the_triage_and_the_checklist_runs_and_shows_what_it_says(
    name: str, memory: Path, tmp_path: Path
) -> None:
    flags = ("--blocks", "256", "--block-size", "16", "--max-model-len", "4096", "--step-time", "base=5ms")
    with EngineProcess(memory, *flags) as engine, AgentProcess(memory, "--interval", "0.5") as agent:
        shell = Shell(tmp_path, agent, memory, engine.url)
        for check in read_page(name).checks:
            output = shell.show(check)
            missing = check.missing(output)
            assert not missing, f"{check.commands}\ndoes not show {missing}:\n{output}"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("tmpfs")
@pytest.mark.needs("curl")
def test_what_a_page_looks_at_first_shows_no_cause_where_nothing_is_wrong(memory: Path, tmp_path: Path) -> None:
    first = {name: read_page(name).checks[0] for name in alert_names()}
    with calm(memory) as agent:
        shell = Shell(tmp_path, agent, memory)
        output = {line: shell.run(line).stdout for line in dict.fromkeys(c for f in first.values() for c in f.commands)}
    for name, check in first.items():
        assert check.missing("".join(output[line] for line in check.commands)), f"{name} is as well without its cause"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("tmpfs")
@pytest.mark.needs("curl")
def test_a_long_prompt_that_others_wait_behind_is_no_stall_and_its_computed_tokens_say_so(
    memory: Path, tmp_path: Path
) -> None:
    (check,) = (c for c in read_page("KvledgerEngineStalled").checks if "computed/prompt+out" in c.signs)
    with AgentProcess(memory) as agent, prefilling(memory, agent):
        output = Shell(tmp_path, agent, memory).show(check)
        stalled = value(agent, "kvledger_verdict", verdict="stalled")
    before, after = (int(computed) for computed in re.findall(r"(\d+)/4000\+8", output))
    assert 0 < before < after < 4000
    assert stalled == 0
