"""`make verdict`: every scenario live, twice, several engines at once, and the report in docs/verdict.md.

The scenarios that the rules were made by, and apart from them those that no threshold was chosen by.
"""

from __future__ import annotations

import argparse
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
REPORT = Path(__file__).parents[2] / "docs" / "verdict.md"


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
        write_report(REPORT, name, outcomes, minutes=(time.monotonic() - started) / 60, at_once=args.at_once)
    wrong = [outcome for outcome in outcomes if not outcome.right]
    print(f"{name}: {len(outcomes)} runs of {len(chosen)} scenarios, {len(wrong)} taken for something else")
    return bool(wrong)


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
