"""A reader may look after any single store: whatever publication it interrupts, a healthy cache shows no finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPERATIONS, EVERY = 300, 4


@pytest.mark.parametrize("case", ["roomy", "cramped", "mixed", "window"])
def test_no_single_store_shows_a_reader_a_contradiction(case: str) -> None:
    paths = (str(ROOT / "engine"), str(ROOT / "agent"), str(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.storestorm", case, str(OPERATIONS), str(EVERY)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(paths)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["looks"] > 1000
    assert counts["evictions"] > 0
    assert counts["copies"] > 0
    assert counts["lifetimes"] > 0
