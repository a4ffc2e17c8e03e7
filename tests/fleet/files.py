"""The files under deploy/fleet, laid out as each program finds them, and promtool over them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from kvledger_alerts.build import GENERATED

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "deploy" / "fleet"
PAGE = ROOT / "docs" / "fleet.md"
RULE_FILES = ("rules.yml", "fleet_rules.yml")


def load(name: str) -> Any:
    """A YAML file of deploy/fleet."""
    return yaml.safe_load((FLEET / name).read_text())


def lay_out(kind: str, into: Path) -> Path:
    """`cluster` or `global` as a directory with everything that its configuration names."""
    shutil.copytree(FLEET / kind, into, dirs_exist_ok=True)
    if kind == "cluster":
        for name in RULE_FILES:
            shutil.copyfile(GENERATED / name, into / name)
    return into


def promtool(*arguments: str, where: Path) -> str:
    """What promtool says; it must have no complaint."""
    done = subprocess.run(["promtool", *arguments], cwd=where, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "FAILED" not in said, said
    assert "WARNING" not in said, said
    return said
