"""`make verdict`: every scenario live, twice, several engines at once, and the report in docs/verdict.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.verdict.live import Outcome, run
from tests.verdict.report import write_report
from tests.verdict.scenario import Scenario
from tests.verdict.scenarios import SCENARIOS

RUNS, AT_ONCE = 2, 4
REPORT = Path(__file__).parents[2] / "docs" / "verdict.md"


def main() -> int:
    """Run the scenarios, print what was said of each. 1 if one was taken for something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.verdict", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each scenario (%(default)s)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="scenarios at once (%(default)s)")
    parser.add_argument("--only", default="", help="scenarios whose reason or name has this in it; writes nothing")
    args = parser.parse_args()
    chosen = [s for s in SCENARIOS if any(word in f"{s.name} {s.reason.word}" for word in args.only.split(","))]
    jobs = [(scenario, seed) for seed in range(args.runs) for scenario in chosen]
    started = time.monotonic()
    with ThreadPoolExecutor(args.at_once) as pool:
        outcomes = list(pool.map(lambda job: _one(*job), jobs))
    if not args.only:
        write_report(REPORT, outcomes, minutes=(time.monotonic() - started) / 60, at_once=args.at_once)
    wrong = [outcome for outcome in outcomes if not outcome.right]
    print(f"{len(outcomes)} runs of {len(chosen)} scenarios, {len(wrong)} taken for something else")
    return int(bool(wrong))


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
