"""Pages written from code are what the code says now. With UPDATE_GOLDEN=1 they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kvledger import catalog_page
from kvledger.catalog import FAMILIES
from kvledger_engine import flags

DOCS = Path(__file__).parents[2] / "docs"
_ARGUMENTS = re.compile(r"(<!-- generated: arguments -->\n).*?(\n<!-- end -->)", re.DOTALL)
_UPDATING = os.environ.get("UPDATE_GOLDEN") == "1"


def test_the_page_of_metrics_is_the_catalogue_as_it_is_now() -> None:
    path = DOCS / "metrics.md"
    if _UPDATING:
        path.write_text(catalog_page.page())
    assert path.read_text() == catalog_page.page(), "python -m kvledger.catalog_page > docs/metrics.md"


def test_the_page_of_metrics_has_every_family_once_and_the_command_prints_it() -> None:
    names = re.findall(r"^\| `(\w+)` \|", catalog_page.page(), re.MULTILINE)
    assert sorted(names) == sorted(family.exposed_name for family in FAMILIES)
    command = [sys.executable, "-m", "kvledger.catalog_page"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == catalog_page.page()


def test_the_arguments_in_the_page_on_the_engine_are_those_of_the_command() -> None:
    path, wanted = DOCS / "engine.md", flags.table()
    text = path.read_text()
    if _UPDATING:
        text = _ARGUMENTS.sub(lambda found: f"{found[1]}{wanted}{found[2]}", text)
        path.write_text(text)
    found = _ARGUMENTS.search(text)
    assert found is not None
    assert found[0] == f"{found[1]}{wanted}{found[2]}", (
        "run with UPDATE_GOLDEN=1, or paste python -m kvledger_engine.flags"
    )
