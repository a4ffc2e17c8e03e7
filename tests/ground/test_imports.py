"""Who may import whom is enforced: the rules hold here, and a planted forbidden import is reported by name and line."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("engine", "agent", "dashboards", "alerts")
LEDGER_MAY_IMPORT = sys.stdlib_module_names | {"numpy", "kvledger"}
PLANTED = [
    ("engine/kvledger", "torch", "No torch but where a tensor is"),
    ("engine/kvledger", "aiohttp", "The ledger needs numpy"),
    ("engine/kvledger", "kvledger_agent", "The ledger imports nothing of ours"),
    ("engine/kvledger_engine", "torch", "No torch but where a tensor is"),
    ("engine/kvledger_engine/model", "vllm", "No torch but where a tensor is"),
    ("engine/kvledger_engine", "kvledger_agent", "The engine does not know the agent"),
    ("agent/kvledger_agent", "kvledger.writer", "The agent reads ledgers"),
    ("agent/kvledger_agent", "kvledger_dashboards", "Nobody needs the boards"),
    ("dashboards/kvledger_dashboards", "kvledger.reader", "Boards and alerts open no ledger"),
    ("alerts/kvledger_alerts", "kvledger_engine", "Boards and alerts open no ledger"),
    ("alerts/kvledger_alerts", "kvledger_agent.findings", "Of the agent, boards and alerts know"),
    ("agent/kvledger_agent", "kvledger_engine", "The agent reads ledgers"),
    ("agent/kvledger_agent", "torch", "No torch but where a tensor is"),
    ("agent/kvledger_agent", "kvledger.inherit", "The agent reads ledgers"),
    ("alerts/kvledger_alerts", "kvledger.audit", "Boards and alerts open no ledger"),
    ("engine/kvledger_engine", "numba", "Nothing is compiled but the loops"),
]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages below `root`."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(root / name) for name in SOURCE_ROOTS), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def foreign_imports(package: Path, allowed: frozenset[str] | set[str]) -> list[str]:
    """Imports below `package`, as `file:line name`, whose top-level package is not in `allowed`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [f"{path.name}:{node.lineno} {name}" for name in names if name.split(".")[0] not in allowed]
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and their rules, free to be spoilt."""
    for root in SOURCE_ROOTS:
        shutil.copytree(ROOT / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.needs("import-linter")
def test_the_import_rules_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.needs("import-linter")
@pytest.mark.parametrize(("package", "imported", "rule"), PLANTED)
def test_a_planted_forbidden_import_is_reported(copy: Path, package: str, imported: str, rule: str) -> None:
    planted = copy / package / "planted.py"
    planted.write_text(f"import {imported}\n")
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert any(rule in line and "BROKEN" in line for line in done.stdout.splitlines())
    assert f"{planted.parent.name}.planted -> {imported} (l.1)" in done.stdout


@pytest.mark.parametrize("module", ["kvledger_engine.core", "kvledger_engine.command", "kvledger_agent.cli"])
def test_torch_is_imported_only_where_a_model_is_opened(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'safetensors'}} & sys.modules.keys()))"
    path = os.pathsep.join(str(ROOT / root) for root in SOURCE_ROOTS)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


WITHOUT_TORCH = """
import sys
for name in ("torch", "triton", "safetensors", "transformers", "vllm"):
    sys.modules[name] = None
from kvledger_engine.quotafile import parse_quotas
from tests.engine.rig import Rig, expected, request

quotas = parse_quotas({"tenants": {"a": {"reserved_blocks": 4, "max_blocks": 24}}})
for more in ({}, {"preemption": "swap", "swap_blocks": 30}, {"quotas": quotas}, {"eviction": "lfu"},
             {"allocation": "grow", "prefix_caching": False}):
    rig = Rig(capacity_blocks=30, max_model_len_tokens=40, **more)
    forks = 1 if "allocation" in more else 2
    requests = [request(f"r{i}", 9 + i, 20, tenant="ab"[i % 2], n=forks, temperature=1.0) for i in range(6)]
    assert rig.submit(*requests, request("gone", 9, 20)) == []
    rig.step(3)
    rig.cancel("gone")
    rig.finish()
    wanted = expected(requests)
    assert {key: rig.outcome.tokens[key] for key in wanted} == wanted
    assert sum(rig.count("preemptions_total", mode=mode) for mode in ("recompute", "swap")) > 0, more
    rig.check_empty()
print("served")
"""


def test_the_control_plane_serves_where_torch_cannot_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in (*SOURCE_ROOTS, "."))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("served\n", "")


def test_the_ledger_imports_numpy_and_the_standard_library_only() -> None:
    assert foreign_imports(ROOT / "engine" / "kvledger", LEDGER_MAY_IMPORT) == []


def test_an_import_of_anything_else_in_the_ledger_is_found(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import json, numpy\n\ndef f() -> None:\n    from requests.api import get\n")
    assert foreign_imports(tmp_path, LEDGER_MAY_IMPORT) == ["late.py:4 requests.api"]
