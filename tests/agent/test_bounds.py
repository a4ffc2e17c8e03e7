"""Numbers, addresses and paths that make no sense, given to every command: one line that says why, and exit code 2."""

from __future__ import annotations

import argparse
from importlib import metadata
from pathlib import Path

import pytest

from kvledger_agent.cli import GROUP, build_parser, main
from kvledger_agent.command import path_argument

ODD_NUMBERS = ("nan", "inf", "-inf", "-1", "1e300")
NOWHERE = "http://127.0.0.1:1"
NEEDED = {"doctor": [NOWHERE], "drill": [NOWHERE], "load": ["--url", NOWHERE]}
"""What a command needs before it gets to its numbers; were they let through, it would find nobody: exit code 1."""
OTHERS = ("engine",)
"""Not this component's."""


def flags_of(kind: object) -> list[tuple[str, str]]:
    """Every flag of every command whose value is of that type."""
    found = []
    for point in metadata.entry_points(group=GROUP):
        if point.name in OTHERS:
            continue
        (actions,) = (a for a in build_parser(point.name)._actions if isinstance(a, argparse._SubParsersAction))
        for action in actions.choices[point.name]._actions:
            found += [(point.name, flag) for flag in action.option_strings[:1] if action.type is kind]
    return sorted(found)


@pytest.fixture(autouse=True)
def _nothing_to_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLEDGER_DIR", str(tmp_path))


@pytest.mark.parametrize(("command", "flag"), flags_of(float))
@pytest.mark.parametrize("number", ODD_NUMBERS)
def test_a_number_that_makes_no_sense_is_a_usage_error(
    command: str, flag: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *NEEDED.get(command, []), f"{flag}={number}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{float(number):g}" in line.replace("1e300", "1e+300")
    assert f" {flag}=" in line, "named as it was given"


COUNTS = [
    (command, flag)
    for command, flag in flags_of(int)
    if command in ("drill", "load") and flag not in ("--seed", "--port")
]


@pytest.mark.parametrize(("command", "flag"), COUNTS)
@pytest.mark.parametrize("number", ["-1", "0", "1" + "0" * 400])
def test_a_count_of_nothing_or_beyond_reason_is_a_usage_error_before_anybody_is_asked(
    command: str, flag: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *NEEDED[command], f"{flag}={number}"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert flag in line


@pytest.mark.parametrize(
    "given",
    ["--blocks=0", "--block-size=0", "--watermark=1024", "--max-model-len=1", "--queue-timeout=0", "--swap-blocks=3"],
)
def test_a_size_that_makes_no_engine_is_named_by_its_flag(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--model", "cell", given]) == 2
    assert capsys.readouterr().err.startswith(f"kvledger: {given}")


def test_there_are_numbers_to_try() -> None:
    assert {command for command, _ in flags_of(float)} >= {
        "agent",
        "doctor",
        "drill",
        "load",
        "scorecard",
        "up",
        "waits",
    }


@pytest.mark.parametrize(("command", "flag"), [flag for flag in flags_of(float) if flag[0] == "agent"])
def test_a_time_is_named_for_what_it_is_on_the_command_line_and_with_its_unit_in_the_environment(
    command: str, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = flag.removeprefix("--").replace("-", "_").upper()
    unit = "" if name == "PRICE_PER_HOUR" else "_SECONDS"
    monkeypatch.setenv(f"KVLEDGER_AGENT_{name}{unit}", "-3")
    assert main([command, "--once"]) == 2
    assert f"{name}{unit}".lower() + "=-3" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--interval-seconds", "--inter", "--scrape-int"])
def test_a_flag_has_one_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["agent", "--once", flag, "1"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "unrecognized arguments" in line
    assert "did you mean --" in line


@pytest.mark.parametrize(("command", "flag"), flags_of(path_argument))
def test_an_empty_path_is_not_the_working_directory(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, *NEEDED.get(command, []), f"{flag}="])
    assert "an empty path" in capsys.readouterr().err


def test_no_path_of_a_command_is_taken_as_it_comes() -> None:
    assert {flag for _, flag in flags_of(path_argument)} >= {"--data", "--directory", "--ledger", "--save", "--trace"}
    assert not flags_of(Path)


BY_ADDRESS = (
    ("agent", "--once", "--scrape"),
    ("agent", "--once", "--otlp"),
    ("doctor",),
    ("load", "--requests", "1", "--url"),
    ("drill",),
    ("drill", NOWHERE, "--agent"),
    ("monitor", "--agent"),
)
ODD_ADDRESSES = (
    *("", "x", "http://", "ftp://h", "http://h:0", "http://h:99999", "http://[::1", "http://h h", "//h", "h:80"),
    f"http://{'a' * 70}.b",
)


@pytest.mark.parametrize("command", BY_ADDRESS, ids=" ".join)
@pytest.mark.parametrize("address", ODD_ADDRESSES)
def test_an_address_that_makes_no_sense_is_a_usage_error(
    command: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, address]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert repr(address) in line
    assert "http://127.0.0.1:" in line, "the remedy"


@pytest.mark.parametrize("command", BY_ADDRESS, ids=" ".join)
@pytest.mark.parametrize("place", ["http://somebody:s3cret@127.0.0.1:1", "http://s3cret@[::1"])
def test_an_address_with_credentials_is_refused_and_not_repeated(
    command: tuple[str, ...], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, place]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "credentials" in line
    assert "s3cret" not in line


def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVLEDGER_API_KEY", "s3cret\n")
    assert main(["load", "--url", NOWHERE, "--requests", "1"]) == 2
    assert "s3cret" not in capsys.readouterr().err


def test_one_look_that_finds_no_engine_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--once", "--scrape", NOWHERE]) == 1
    assert "kvledger_build_info" in capsys.readouterr().out
