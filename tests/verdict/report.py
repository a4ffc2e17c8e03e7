"""What the runs of all scenarios make of docs/verdict.md: the confusion matrix, and what was said of each scenario."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kvledger.reasons import ROWS
from kvledger.words import Reason
from tests.verdict.live import INTERVAL_SECONDS, LOOKS, WINDOW_SECONDS, Outcome

_NEVER = "—"


def write_report(
    path: Path, part: str, outcomes: Sequence[Outcome], *, minutes: float, at_once: int, source: str
) -> None:
    """Replace the table of reasons, and the part of the page that these runs are of: `runs` or `held out`.

    `source` says of which state of the code.
    """
    text = path.read_text()
    text = replaced(text, "reasons", reasons_table())
    text = replaced(text, part, runs_text(outcomes, minutes=minutes, at_once=at_once, source=source))
    path.write_text(text)


def replaced(text: str, part: str, content: str) -> str:
    """The page with one part, which lies between two comments, replaced. Raises ValueError if there is none."""
    found = re.subn(rf"(<!-- {part} -->\n).*?(<!-- end of {part} -->)", rf"\g<1>\n{content}\n\n\g<2>", text, flags=re.S)
    if found[1] != 1:
        raise ValueError(f"the page has no part {part!r} of its own")
    return found[0]


def reasons_table() -> str:
    """The table of `kvledger.reasons`."""
    rows = ["| reason | verdict | action | what it says | what to do |", "|---|---|---|---|---|"]
    for row in ROWS:
        words = f"| `{row.reason.word}` | `{row.verdict.word}` | `{row.action.word}`"
        rows.append(f"{words} | {row.says} | {row.to_do} |")
    return "\n".join(rows)


def runs_text(outcomes: Sequence[Outcome], *, minutes: float, at_once: int, source: str) -> str:
    """The runs in words, the matrix, and the scenarios."""
    wrong = [outcome for outcome in outcomes if not outcome.right]
    names = {outcome.scenario.name for outcome in outcomes}
    steady = sum(len(outcome.said) == 1 for outcome in outcomes)
    runs = f"{len(outcomes)} runs of {len(names)} scenarios in {minutes:.0f} minutes, {at_once} at once, of {source}"
    told = (
        f"{runs}: {len(wrong)} taken for something else. Each run is {LOOKS} answers, {INTERVAL_SECONDS:g} s apart, "
        f"after a window and a half of {WINDOW_SECONDS:g} s; what was said most often counts. In {steady} runs all "
        "answers were the same."
    )
    parts = [told, *map(_wrong, wrong), matrix(outcomes), scenarios_table(outcomes)]
    return "\n\n".join(parts)


def matrix(outcomes: Sequence[Outcome]) -> str:
    """What each scenario is (rows) against what was said of it (columns), in runs."""
    cells = Counter((outcome.scenario.reason.word, outcome.reason) for outcome in outcomes)
    said = [word for word in Reason.words() if any(cells[is_, word] for is_ in Reason.words())]
    letters = {word: str(number) for number, word in enumerate(said, 1)}
    rows = [
        "| what it is | " + " | ".join(letters[word] for word in said) + " |",
        "|---|" + "---:|" * len(said),
    ]
    for is_ in Reason.words():
        if any(cells[is_, word] for word in said):
            counts = " | ".join(str(cells[is_, word] or _NEVER) for word in said)
            rows.append(f"| {letters.get(is_, '')} `{is_}` | {counts} |")
    return "\n".join(rows)


def confusion(page: str) -> Counter[tuple[str, str]]:
    """Runs by (what it is, what was said), read back from the page, of the scenarios that the rules were made by."""
    part = page.split("<!-- runs -->")[1].split("<!-- end of runs -->")[0]
    rows = re.findall(r"^\| (\d*) ?`(\w+)` \|(.*)\|$", part, flags=re.M)
    said = [word for number, word, _ in rows if number]
    found: Counter[tuple[str, str]] = Counter()
    for _, is_, cells in rows:
        for word, cell in zip(said, cells.split("|"), strict=True):
            found[is_, word] = 0 if cell.strip() == _NEVER else int(cell)
    return found


def scenarios_table(outcomes: Sequence[Outcome]) -> str:
    """Every scenario with its neighbours and the evidence of its last run."""
    last = {outcome.scenario.name: outcome for outcome in outcomes}
    rows = ["| scenario | is | and not | evidence in its last run |", "|---|---|---|---|"]
    for outcome in last.values():
        scenario = outcome.scenario
        others = ", ".join(f"`{reason.word}`" for reason in scenario.neighbours)
        evidence = str(outcome.last["evidence"]).replace("|", "\\|")
        rows.append(f"| {scenario.name}: {scenario.says} | `{scenario.reason.word}` | {others} | {evidence} |")
    return "\n".join(rows)


def _wrong(outcome: Outcome) -> str:
    said = ", ".join(f"`{word}` {count} times" for word, count in outcome.said.most_common())
    return (
        f"- {outcome.scenario.name} is `{outcome.scenario.reason.word}`; said were {said}: {outcome.last['evidence']}"
    )
