"""The command finds its subcommands by entry point, imports only the chosen one and shows errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvledger.errors import LedgerError
from kvledger_agent.cli import build_parser, main
from kvledger_agent.completion import COMMAND as COMPLETION
from kvledger_agent.extras import extra_of
from kvledger_agent.process import version

COMMANDS = """
import argparse
from kvledger.errors import NotALedger
from kvledger_agent.errors import UsageError

class Command:
    help = "a command for tests"
    def __init__(self, name, outcome):
        self.name, self.outcome = name, outcome
    def configure(self, parser):
        parser.add_argument("--times", type=int, default=1)
    def run(self, args):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        print("ran", self.name, args.times)
        return self.outcome

FINE = Command("fine", 0)
FINDING = Command("finding", 1)
MISUSED = Command("misused", UsageError("rate 0:\\n  give more"))
LEDGER = Command("ledger", NotALedger("x.kvl: wrong magic; give a ledger"))
BUG = Command("bug", ZeroDivisionError("our own"))
INTERRUPTED = Command("interrupted", KeyboardInterrupt())
"""
ENTRY_POINTS = """[kvledger.commands]
bug = some_commands:BUG
fine = some_commands:FINE
finding = some_commands:FINDING
interrupted = some_commands:INTERRUPTED
ledger = some_commands:LEDGER
lost = commands_without_package:COMMAND
misused = some_commands:MISUSED
other = other_commands:FINE
"""


@pytest.fixture(autouse=True)
def an_installed_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution called kvledger, found before any installed one, that brings commands for tests."""
    info = tmp_path / "kvledger-9.8.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kvledger\nVersion: 9.8.7\n"
        "Requires-Dist: absent-package>=3 ; extra == 'agent'\nRequires-Dist: kvledger[agent] ; extra == 'all'\n"
    )
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "some_commands.py").write_text(COMMANDS)
    (tmp_path / "other_commands.py").write_text("from some_commands import FINE\n")
    (tmp_path / "commands_without_package.py").write_text("import absent_package.deep\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("some_commands", "other_commands"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    version.cache_clear()
    yield
    version.cache_clear()


def test_a_subcommand_runs_with_its_arguments_and_gives_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fine", "--times", "3"]) == 0
    assert capsys.readouterr().out == "ran fine 3\n"
    assert main(["finding"]) == 1


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        ("misused", 2, "kvledger: rate 0: give more\n"),
        ("ledger", LedgerError.exit_code, "kvledger: x.kvl: wrong magic; give a ledger\n"),
    ],
)
def test_an_error_meant_for_the_user_is_one_line_and_its_exit_code(
    command: str, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == code
    assert capsys.readouterr().err == line


def test_our_own_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(["bug"])


def test_an_interrupted_command_exits_as_a_shell_expects() -> None:
    assert main(["interrupted"]) == 130


def test_a_missing_package_names_the_extra_that_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lost"]) == 1
    assert capsys.readouterr().err == (
        "kvledger: `lost` needs absent_package, which is not installed: pip install 'kvledger[agent]'\n"
    )


def test_help_lists_every_command_also_those_that_cannot_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])

    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert "a command for tests" in shown
    assert "needs absent_package" in shown


def test_an_argument_that_a_command_does_not_know_is_one_line_that_says_where_its_flags_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["fine", "--zzz", "x"])
    assert capsys.readouterr().err == ("kvledger fine: unrecognized arguments: --zzz x; see `kvledger fine --help`\n")


def test_a_flag_that_is_nearly_right_is_told_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fine", "--time", "3"])
    assert "did you mean --times?" in capsys.readouterr().err


def test_only_the_chosen_command_is_imported() -> None:
    assert main(["fine"]) == 0
    assert "other_commands" not in sys.modules
    build_parser()
    assert "other_commands" in sys.modules


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["fine", "--times", "many"], ["fine", "--no-such"]])
def test_a_usage_error_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])

    assert capsys.readouterr().out == "kvledger 9.8.7\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_knows_the_commands_and_their_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMPLETION.run(argparse.Namespace(shell=shell)) == 0
    script = capsys.readouterr().out
    assert "finding" in script
    assert "--times" in script


@pytest.mark.parametrize(
    ("module", "extra"),
    [("aiohttp", "agent"), ("opentelemetry", "otlp"), ("yaml", "alerts"), ("msgspec", "engine"), ("torch", None)],
)
def test_the_extra_of_a_module_is_found_by_the_name_of_its_distribution(module: str, extra: str | None) -> None:
    requirements = [
        "numpy>=1.26",
        'aiohttp>=3.9; extra == "agent"',
        "opentelemetry-sdk; extra == 'otlp'",
        "pyyaml>=6 ; python_version > '3' and extra == 'alerts'",
        'msgspec>=0.18; extra == "engine"',
        'kvledger[agent,engine]; extra == "all"',
    ]

    assert extra_of(module, requirements) == extra
