"""The command: exit 1 on a missed bar, and a page that holds what was measured and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.effort import Effort
from bench.errors import BenchError, NotHere
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.rows import Row

BAR = Bar(Sense.AT_MOST, 50.0)


def row(name: str, figures: list[float], bar: Bar | None = BAR) -> Row:
    """A row that measured these figures."""

    def measure(effort: Effort) -> list[Result]:
        found = estimate(figures)
        quantity = Quantity(f"twice {name}", estimate([2 * figure for figure in figures]), "µs")
        return [
            Result(
                row=name, name=f"the {name}", estimate=found, unit="%", how="It ran.", bar=bar, quantities=(quantity,)
            )
        ]

    return Row(name, measure)


GOOD, BAD = row("good", [10.0, 11.0, 12.0]), row("bad", [60.0, 61.0, 62.0])
UNSURE, FREE = row("unsure", [40.0, 49.0, 56.0]), row("free", [70.0, 71.0, 72.0], None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "benchmarks.md"


@pytest.mark.parametrize(
    ("rows", "code"), [([GOOD], 0), ([GOOD, FREE], 0), ([BAD], 1), ([GOOD, BAD], 1), ([UNSURE, GOOD], 1)]
)
def test_a_missed_bar_makes_the_exit_code_1(rows: list[Row], code: int, path: Path) -> None:
    assert main([], rows=rows, path=path) == code
    assert main(["--quick"], rows=rows, path=path) == code
    assert main(["--json"], rows=rows, path=path) == code


def test_the_table_holds_the_measured_values_and_changes_with_them(path: Path) -> None:
    main([], rows=[row("one", [31.4, 31.5, 31.6])], path=path)
    before = path.read_text()
    main([], rows=[row("one", [27.1, 27.2, 27.3])], path=path)
    after = path.read_text()
    assert "| `one` | the one | 31.5 % | 31.4 – 31.6 |" in before
    assert "| twice one | 63 µs | 62.8 – 63.2 |" in before
    assert "| `one` | the one | 27.2 % | 27.1 – 27.3 |" in after
    assert "| twice one | 54.4 µs | 54.2 – 54.6 |" in after
    assert "31.5" not in after
    assert "63" not in re.sub(r"Machine:.*", "", after)


def test_the_page_says_which_bars_were_missed_and_is_written_all_the_same(path: Path) -> None:
    assert main([], rows=[GOOD, BAD], path=path) == 1
    text = path.read_text()
    assert "2 bars, 1 missed:" in text
    assert "- the bad: 61 % (60 – 62), bar ≤ 50 %" in text
    assert re.search(r"\| `good` .* ≤ 50 % \| yes \|", text)
    assert re.search(r"\| `bad` .* ≤ 50 % \| \*\*no\*\* \|", text)


def test_the_page_names_machine_and_versions(path: Path) -> None:
    main([], rows=[GOOD], path=path)
    assert re.search(r"Machine: \d+ cores, .+, Linux .+; Python 3\.\d+\.\d+, numpy \d", path.read_text())


@pytest.mark.parametrize("arguments", [["--quick"], ["--only", "good"], ["--quick", "--only", "bad"]])
def test_a_quick_run_or_one_row_leaves_the_page_as_it_is(arguments: list[str], path: Path) -> None:
    path.write_text("as it was")
    main(arguments, rows=[GOOD, BAD], path=path)
    assert path.read_text() == "as it was"


def test_only_runs_the_rows_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "good", "--only", "free"], rows=[GOOD, BAD, FREE], path=path) == 0
    shown = capsys.readouterr().out
    assert "the good" in shown
    assert "the free" in shown
    assert "the bad" not in shown


def test_an_unknown_row_is_a_usage_error(path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "none"], rows=[GOOD], path=path)
    assert stopped.value.code == 2


def test_a_row_that_cannot_be_measured_is_a_failure_and_writes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(effort: Effort) -> list[Result]:
        raise BenchError("nothing to measure: start it")

    assert main([], rows=[GOOD, Row("broken", fail)], path=path) == 1
    assert "bench: nothing to measure: start it" in capsys.readouterr().err
    assert not path.exists()


def test_json_carries_every_estimate_bar_and_verdict(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"], rows=[GOOD, BAD, FREE], path=path) == 1
    document = json.loads(capsys.readouterr().out)
    assert [result["met"] for result in document["results"]] == [True, False, None]
    assert document["results"][0]["estimate"]["value"] == 11
    assert document["results"][1]["bar"] == {"sense": "≤", "limit": 50.0}
    assert document["missed"] == ["the bad"]
    assert document["machine"]["cores"] >= 1


def test_a_row_that_lacks_something_is_skipped_said_and_counted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lack(effort: Effort) -> list[Result]:
        raise NotHere("there is no peer here: make one")

    rows = [GOOD, Row("against", lack), Row("another", lack)]
    assert main([], rows=rows, path=path) == 0
    assert "skipped: against: there is no peer here: make one" in capsys.readouterr().out
    text = path.read_text()
    assert "Skipped rows: 2, for which nothing here stands:" in text
    assert "- `another`: there is no peer here: make one" in text
    assert "| `against` |" not in text
    assert main(["--json"], rows=rows, path=path) == 0
    document = json.loads(capsys.readouterr().out)
    assert [skipped["row"] for skipped in document["skipped"]] == ["against", "another"]
    assert len(document["results"]) == 1
