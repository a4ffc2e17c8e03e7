"""Reads the runbook's pages: their sections, their commands, and what these should show."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvledger_alerts.runbook_pages import RUNBOOK, page_path

CHECKLIST = "launch-checklist"
"""Besides the triage the only page that is about no alert: what is asked before launch."""
_FENCE = re.compile(r"^```sh\n(.*?)^```\n(?:\n((?:[^\n]+\n)+))?", re.MULTILINE | re.DOTALL)
_SIGN = re.compile(r"`([^`]+)`")
_PLACEHOLDER = re.compile(r"(…|\bN\b|\b0\b|\b1\b|\s+)")
_NUMBER_END = r"(?:\.0+)?(?![\w.])"
_PATTERNS = {"…": ".*", "N": r"(?=[\d.]*[1-9])[\d.]+", "0": "0" + _NUMBER_END, "1": "1" + _NUMBER_END}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One fenced block: its shell lines, and the texts that its output shows when this alert fires for a cause."""

    commands: tuple[str, ...]
    signs: tuple[str, ...]

    def missing(self, output: str) -> list[str]:
        """The signs that this output does not show."""
        return [sign for sign in self.signs if not re.search(sign_pattern(sign), output)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One alert's page. `head` is what stands between title and sections, which are in the page's order."""

    title: str
    head: str
    sections: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def decisions(self) -> tuple[str, ...]:
        """The bold words that the points under Decision begin with."""
        return tuple(re.findall(r"^- \*\*(.+?)\*\*", self.sections["Decision"], re.MULTILINE))


def page_names() -> tuple[str, ...]:
    """The pages of alerts that there are, by their alerts' names. `README` and the checklist are about no alert."""
    return tuple(sorted(path.stem for path in RUNBOOK.glob("Kvledger*.md")))


def read_page(alert: str) -> Page:
    """An alert's page, or one of the two others. Raises FileNotFoundError for an alert without one."""
    return parse_page(page_path(alert).read_text())


def sign_pattern(sign: str) -> str:
    """A sign as a regular expression: `…` is any text within a line, `N` a number above 0, and 0 is also `0.0`."""
    parts = _PLACEHOLDER.split(sign)
    return "".join(r"[^\S\n]+" if part.isspace() else _PATTERNS.get(part, re.escape(part)) for part in parts)


def parse_page(text: str) -> Page:
    """A page from its Markdown."""
    head, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return Page(
        title=head.removeprefix("# ").splitlines()[0],
        head="\n".join(head.splitlines()[1:]).strip(),
        sections=sections,
        checks=tuple(_check(match) for match in _FENCE.finditer(text)),
    )


def _check(match: re.Match[str]) -> Check:
    """A block and the sentence "Look for …" after it, whose words in backticks are what the output shows."""
    _, said, rest = (match[2] or "").partition("Look for ")
    sentence = re.split(r"\.\s", rest, maxsplit=1)[0]
    return Check(commands=tuple(match[1].splitlines()), signs=tuple(_SIGN.findall(sentence)) if said else ())
