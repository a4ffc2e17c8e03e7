"""The parser: exact names, bounds, and a damaged line that is no value."""

from __future__ import annotations

import time

import pytest

from kvledger_agent.scrape import page as page_module
from kvledger_agent.scrape.page import MAX_PAGE_BYTES, parse_page


def test_samples_are_found_under_the_name_that_is_on_the_page() -> None:
    page = parse_page('# TYPE a counter\na{x="1",y="q\\"\\n\\\\"} 2\na{x="2",y="z"} 3e0\nb 4 1790000000000\n')

    assert page.value("a", x="1") == 2
    assert page.sum("a") == 5
    assert page.by("a", "x") == {"1": 2, "2": 3}
    assert [labels["y"] for labels, _ in page.samples("a")] == ['q"\n\\', "z"]
    assert page.value("b") == 4
    assert not page.has("a_total")
    assert page.damaged_lines == 0


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "a x",
        "a 0x10",
        "a 1_0",
        "a 12 34",
        "a 1 2 3",
        'a{x="1" 5',
        'a{x="1"}5',
        'a{x="1",x="1"} 5',
        "a{x=1} 5",
        'a{x="\ufffd"} 5',
        "a ٣",
    ],
)
def test_a_damaged_line_is_counted_and_its_family_unknown(line: str) -> None:
    page = parse_page(f'a{{x="9"}} 7\n{line}\nb 1\n')

    assert page.damaged_lines == 1
    assert page.sum("a") is None
    assert page.value("a", x="9") is None
    assert page.value("b") == 1


def test_a_last_line_without_its_end_is_not_believed() -> None:
    assert parse_page("a 1\nb 123").value("b") is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
def test_what_is_no_finite_number_is_unknown(value: str) -> None:
    page = parse_page(f"a {value}\n")

    assert page.has("a")
    assert page.value("a") is None
    assert page.sum("a") is None


def test_a_series_that_says_two_things_says_nothing() -> None:
    assert parse_page('a{x="1"} 1\na{x="1"} 2\n').value("a") is None
    assert parse_page('a{x="1"} 1\na{x="1"} 1\n').value("a") == 1


def test_only_what_is_wanted_is_kept() -> None:
    page = parse_page("aa 1\nab 2\nb 3\n??? \n", ["a"])

    assert set(page.families) == {"aa", "ab"}
    assert page.damaged_lines == 0


def test_a_page_beyond_the_bounds_is_marked_and_its_sums_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_SERIES", 10)
    many = parse_page("".join(f'a{{x="{n}"}} 1\n' for n in range(20)))
    large = parse_page(b"a 1\n" + b"#" * MAX_PAGE_BYTES + b"\nb 2\n")

    assert many.truncated
    assert len(many.families["a"]) == 10
    assert many.sum("a") is None
    assert large.truncated
    assert not large.has("b")


def test_a_hostile_line_costs_no_more_than_its_length() -> None:
    labels = ",".join(f'l{n}="{"v" * 50}"' for n in range(1000))
    began = time.process_time()

    parse_page(f"a{{{labels}}} 1\n" * 50 + 'a{x="' + "\\" * 1_000_000 + "\n" + "a{" * 100_000 + "\n")

    assert time.process_time() - began < 2
