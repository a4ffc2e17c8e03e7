"""Files and modules that a page names are there: a page does not outlive what it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
SOURCES = ("bench", "engine", "agent", "alerts", "dashboards", "tests")
FOREIGN = ("vllm.", "pip", "venv", "pytest")
"""Beginnings of modules that are others' and are run by `python -m` all the same."""
_FILE = re.compile(r"`([\w./-]+\.py)`|\b(tests/[\w/]+\.py)\b")
_MODULE = re.compile(r"python -m ([\w.]+)")


def files_named(text: str) -> set[str]:
    """Python files in backticks, and tests by their path."""
    return {first or second for first, second in _FILE.findall(text)}


def modules_named(text: str) -> set[str]:
    """Modules of ours that are run."""
    return {name.rstrip(".") for name in _MODULE.findall(text) if not name.startswith(FOREIGN)}


def sources() -> Iterator[str]:
    """Every Python file, by its path from the root."""
    for folder in SOURCES:
        yield from (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_module_that_a_page_names_is_there(page: Path) -> None:
    text, there = page.read_text(), [f"/{path}" for path in sources()]
    assert [name for name in files_named(text) if not any(path.endswith(f"/{name}") for path in there)] == []
    wanted = {name: name.replace(".", "/") for name in modules_named(text)}
    ends = {name: (f"/{path}.py", f"/{path}/__main__.py") for name, path in wanted.items()}
    assert [name for name, end in ends.items() if not any(path.endswith(end) for path in there)] == []


def test_names_are_found_in_a_page() -> None:
    text = (
        "Read `kvledger/writer.py` and tests/engine/test_pool.py; `python -m bench.cancel --write`, python -m venv x."
    )
    assert files_named(text) == {"kvledger/writer.py", "tests/engine/test_pool.py"}
    assert modules_named(text) == {"bench.cancel"}
