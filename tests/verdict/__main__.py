"""`make verdict`: every scenario live, twice, several engines at once, and the report in docs/verdict.md.

The scenarios that the rules were made by, and apart from them those that no threshold was chosen by.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.verdict.heldout import HELD_OUT
from tests.verdict.live import Outcome, run
from tests.verdict.report import write_report
from tests.verdict.scenario import Scenario
from tests.verdict.scenarios import SCENARIOS

RUNS, AT_ONCE = 2, 4
SETS = {"runs": SCENARIOS, "held out": HELD_OUT}
"""Part of the page -> its scenarios."""
ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "verdict.md"


def main() -> int:
    """Run the scenarios, print what was said of each. 1 if one that rules were made by was taken for another."""
    parser = argparse.ArgumentParser(prog="python -m tests.verdict", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each scenario (%(default)s)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="scenarios at once (%(default)s)")
    parser.add_argument("--set", choices=list(SETS), help="one set of scenarios (both)")
    parser.add_argument("--only", default="", help="scenarios whose reason or name has this in it; writes nothing")
    args = parser.parse_args()
    wrong = {name: _set(name, args) for name in SETS if args.set in (None, name)}
    return int(wrong.get("runs", False))


def _set(name: str, args: argparse.Namespace) -> bool:
    """Run one set. Whether a scenario of it was taken for something else."""
    chosen = [s for s in SETS[name] if any(word in f"{s.name} {s.reason.word}" for word in args.only.split(","))]
    jobs = [(scenario, seed) for seed in range(args.runs) for scenario in chosen]
    started = time.monotonic()
    with ThreadPoolExecutor(args.at_once) as pool:
        outcomes = list(pool.map(lambda job: _one(*job), jobs))
    if not args.only:
        minutes = (time.monotonic() - started) / 60
        write_report(REPORT, name, outcomes, minutes=minutes, at_once=args.at_once, source=source())
    wrong = [outcome for outcome in outcomes if not outcome.right]
    print(f"{name}: {len(outcomes)} runs of {len(chosen)} scenarios, {len(wrong)} taken for something else")
    return bool(wrong)


def source() -> str:
    """The state of the code: its last commit and that one's day, and whether code was changed since."""
    commit = _git("log", "-1", "--format=commit %h, %as")
    return f"{commit}, with later changes" if _git("status", "--porcelain", "--", "*.py") else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _one(scenario: Scenario, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="kvledger-verdict-", dir="/dev/shm") as directory:
        outcome = run(scenario, Path(directory), seed=seed)
    mark = "ok   " if outcome.right else "WRONG"
    print(
        f"{mark} {scenario.reason.word:18} {dict(outcome.said)} {scenario.name}: {outcome.last['evidence']}", flush=True
    )
    return outcome


if __name__ == "__main__":
    sys.exit(main())
