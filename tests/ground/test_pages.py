"""What the pages tell a reader to type, and where their links lead: flags, modules, targets and headings are there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from kvledger_agent.cli import build_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "alerts").rglob("*.md")])
COMMAND = re.compile(r"(?:^|[`$( /])kvledger (?P<name>[a-z]+)(?P<rest>(?:\\\n|[^`\n|;&#)])*)", re.MULTILINE)
MODULE = re.compile(r"python3? -m (?P<name>[a-z_]+(?:\.[a-z_]+)*)")
TARGET = re.compile(r"(?:`|^)make (?P<name>[a-z-]+)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)(?P<file>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def subcommands() -> dict[str, ArgumentParser]:
    """The parsers of all subcommands by name."""
    groups: Any = build_parser()._subparsers
    return dict(groups._group_actions[0].choices)


def typed(text: str) -> list[tuple[str, list[str]]]:
    """Each command of a page: its name and its flags."""
    found = []
    for match in COMMAND.finditer(text):
        rest = re.sub(r"\.\.\.|…", "", re.sub(r"\s*\\\n\s*", " ", match["rest"])).strip()
        try:
            words = shlex.split(rest.split("  ")[0])
        except ValueError:  # a sentence with an apostrophe
            words = []
        flags = [word.partition("=")[0].rstrip(".,:") for word in words if word.startswith("--")]
        found.append((match["name"], flags))
    return found


def anchors(page: Path) -> set[str]:
    """Where a link into a page can lead: its headings, as they are made anchors."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@of_each_page
def test_every_flag_of_a_command_in_a_page_is_one_that_it_has(page: Path) -> None:
    known = {
        name: {option for action in parser._actions for option in action.option_strings}
        for name, parser in subcommands().items()
    }
    wrong = [(name, flag) for name, flags in typed(page.read_text()) if name in known for flag in flags]
    assert [(name, flag) for name, flag in wrong if flag not in known[name]] == []


def test_commands_and_their_flags_are_found_in_a_page() -> None:
    text = (
        "Run `kvledger load --for 5 --json`, then\n```\nkvledger up --for 3 \\\n    --no-such-flag   # a comment\n```\n"
    )

    assert typed(text) == [("load", ["--for", "--json"]), ("up", ["--for", "--no-such-flag"])]


@of_each_page
def test_every_module_that_a_page_runs_is_there(page: Path) -> None:
    names = {match["name"] for match in MODULE.finditer(page.read_text())}
    assert [name for name in sorted(names) if importlib.util.find_spec(name) is None] == []


@of_each_page
def test_every_make_target_that_a_page_names_is_one(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {match["name"] for match in TARGET.finditer(page.read_text())} <= targets


@of_each_page
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    lost = []
    for match in LINK.finditer(page.read_text()):
        target = (page.parent / match["file"]).resolve() if match["file"] else page
        if not target.exists() or (match["anchor"] and match["anchor"] not in anchors(target)):
            lost.append(match[0])
    assert lost == []
