"""The generator: committed boards are current, say nothing the SDK does not know, and the check can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from kvledger_dashboards import build
from tests.dashboards.boards import BOARDS


def test_the_committed_boards_are_what_the_generator_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_names_what_is_changed_missing_or_left_over(tmp_path: Path) -> None:
    every = [f"kvledger-{name}.json" for name in ("fleet", "itself", "oncall", "pool", "requests")]
    assert build.stale(tmp_path) == every

    (path,) = [path for path in build.write(tmp_path) if path.stem == "kvledger-oncall"]
    assert build.stale(tmp_path) == []

    path.write_text(path.read_text().replace("Leaking", "Dripping", 1))
    (tmp_path / "old.json").write_text("{}")
    assert build.stale(tmp_path) == ["kvledger-oncall.json", "old.json"]

    build.write(tmp_path)
    assert sorted(left.name for left in tmp_path.iterdir()) == every


def test_boards_can_be_built_elsewhere_with_other_addresses(tmp_path: Path) -> None:
    places = ["--explorer", "https://look.example/", "--runbook-base", "https://do.example/"]
    assert build.main(["--into", str(tmp_path / "made"), *places]) == 0

    made = json.loads((tmp_path / "made/kvledger-pool.json").read_text())
    given = {each["name"]: each["query"] for each in made["templating"]["list"] if each["type"] == "textbox"}
    assert given == {"explorer": "https://look.example", "runbook": "https://do.example/"}


def test_a_stale_board_fails_the_check_and_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "stale", lambda *_: build.__dict__["rendered"]().keys())

    assert build.main(["--check"]) == 1
    assert "python -m kvledger_dashboards.build" in capsys.readouterr().err


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_says_nothing_that_the_sdk_does_not_know(name: str) -> None:
    """A misspelt key would silently do nothing in Grafana; here it is lost on the way through the SDK's types."""
    register_default_plugins()
    encoded = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARDS[name])))
    for each in (*encoded["links"], *encoded["annotations"]["list"]):
        each.pop("placement", None)

    assert encoded == BOARDS[name]


@pytest.mark.parametrize(("at", "wrong"), [(("panels", 1), "tilte"), (("panels", 1, "options"), "colorMod")])
def test_the_round_trip_can_fail(at: tuple[Any, ...], wrong: str) -> None:
    register_default_plugins()
    board = json.loads(json.dumps(BOARDS["kvledger-oncall"]))
    place: Any = board
    for step in at:
        place = place[step]
    place[wrong] = "x"

    assert f'"{wrong}"' not in JSONEncoder().encode(Dashboard.from_json(board))
