"""The distribution is what its users and the command line rely on: packages, dependencies, extras, entry points."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCE_ROOTS = ("engine", "agent", "dashboards", "alerts")
TOOLS = {Path("dashboards/render")}
"""Run from a checkout; the wheel leaves them out."""
COMMANDS = {
    "agent": "kvledger_agent.commands.agent:COMMAND",
    "completion": "kvledger_agent.completion:COMMAND",
    "doctor": "kvledger_agent.commands.doctor:COMMAND",
    "drill": "kvledger_agent.drill.command:COMMAND",
    "engine": "kvledger_engine.command:COMMAND",
    "explorer": "kvledger_dashboards.explorer.command:COMMAND",
    "load": "kvledger_agent.load.command:COMMAND",
    "monitor": "kvledger_alerts.monitor.command:COMMAND",
    "runbook": "kvledger_alerts.monitor.runbook:COMMAND",
    "scorecard": "kvledger_agent.commands.scorecard:COMMAND",
    "sharing": "kvledger_agent.commands.sharing:COMMAND",
    "snapshot": "kvledger_agent.commands.snapshot:COMMAND",
    "status": "kvledger_agent.commands.status:COMMAND",
    "up": "kvledger_agent.commands.up:COMMAND",
    "waits": "kvledger_agent.commands.waits:COMMAND",
}
EXTRAS = {
    "agent": {"aiohttp", "rich", "shtab"},
    "engine": {"aiohttp", "jinja2", "msgspec", "numba", "safetensors", "tokenizers", "torch"},
    "kernels": {"triton"},
    "otlp": {"opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk", "requests"},
    "alerts": {"markdown-it-py", "pyyaml"},
    "dashboards": {"grafana-foundation-sdk"},
    "explorer": {"plotly", "streamlit"},
    "all": {"kvledger[agent,alerts,dashboards,engine,explorer,kernels,otlp]"},
}


def name_of(requirement: str) -> str:
    """The package a requirement names, with its extras and without its version."""
    return re.split(r"[<>=~!; ]", requirement, maxsplit=1)[0]


def declared_requirements() -> list[str]:
    """Every requirement the project states: core, extras, development tools and build backend."""
    project = PROJECT["project"]
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    requirements = [*project["dependencies"], *extras, *PROJECT["dependency-groups"]["dev"]]
    return [item for item in (*requirements, *PROJECT["build-system"]["requires"]) if not item.startswith("kvledger[")]


def test_a_bare_install_brings_numpy_and_the_prometheus_client_only() -> None:
    assert {name_of(item) for item in PROJECT["project"]["dependencies"]} == {"numpy", "prometheus-client"}


def test_the_extras_are_agent_engine_and_all() -> None:
    found = {extra: set(map(name_of, items)) for extra, items in PROJECT["project"]["optional-dependencies"].items()}
    assert found == EXTRAS


@pytest.mark.parametrize("requirement", declared_requirements())
def test_requirements_are_floors_and_the_constraints_pin_what_was_tested(requirement: str) -> None:
    # The SDK's current releases sort below those of an older scheme: only an exact version will do.
    exact = name_of(requirement) == "grafana-foundation-sdk"
    marker = "; platform_system == 'Linux'" if name_of(requirement) == "triton" else ""
    assert re.fullmatch(rf"[a-z0-9-]+{'==' if exact else '>='}[0-9.]+{marker}", requirement)
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert name_of(requirement) in {name.lower() for name in pins}


def test_torch_comes_with_the_engine_and_with_nothing_else_and_one_version_was_tested() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("torch")] == ["torch==2.13.0"]
    asked = [item for item in declared_requirements() if name_of(item) == "torch"]
    assert len(asked) == 1
    assert asked[0] in PROJECT["project"]["optional-dependencies"]["engine"]


def test_the_wheel_holds_every_package_of_the_source_roots_and_each_is_typed() -> None:
    packages = {Path(package) for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    roots = {path.parent.relative_to(ROOT) for root in SOURCE_ROOTS for path in (ROOT / root).glob("*/*.py")}
    assert roots - TOOLS == packages
    assert [str(package) for package in packages if not (ROOT / package / "py.typed").exists()] == []


def test_subcommands_are_declared_as_entry_points() -> None:
    assert PROJECT["project"]["scripts"] == {"kvledger": "kvledger_agent.cli:main"}
    assert PROJECT["project"]["entry-points"]["kvledger.commands"] == COMMANDS


@pytest.mark.needs("distribution")
def test_the_installed_distribution_says_the_same_as_the_project_file() -> None:
    installed = metadata.distribution("kvledger")
    assert installed.metadata["Requires-Python"] == ">=3.11"
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    assert set(installed.metadata.get_all("Provides-Extra") or ()) == set(EXTRAS)
    points = installed.entry_points
    assert {point.name: point.value for point in points.select(group="kvledger.commands")} == COMMANDS
    assert [point.value for point in points.select(group="console_scripts")] == ["kvledger_agent.cli:main"]


@pytest.mark.needs("distribution")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_loads(name: str) -> None:
    (point,) = metadata.entry_points(group="kvledger.commands", name=name)
    assert point.load() is not None


def test_make_explains_every_target_a_person_would_type() -> None:
    made = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    listed = set(re.findall(r"^make (\w+)", made.stdout, re.MULTILINE))
    assert {"up", "test", "bench", "reliability", "lint", "help"} <= listed


def test_ci_runs_the_tests_of_a_contributor_and_those_with_the_real_vllm() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-2:] == ["make test", "exec make test-vllm"]
