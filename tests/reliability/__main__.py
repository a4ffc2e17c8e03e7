"""`make reliability`: every drill in full, with progress, and the report in docs/reliability.md.

Exits 1 when any run of any drill failed. `--scale 0.1` runs a tenth and writes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, TaskID

from kvledger_engine.faults import FaultKind
from tests.children import memory_directory
from tests.reliability.clean import CleanResult
from tests.reliability.faults import FaultResult
from tests.reliability.kills import run_kills
from tests.reliability.report import Drills, TestDrills, write_report
from tests.reliability.stops import run_stops
from tests.reliability.storms import REQUESTS_PER_STORM, run_storms
from tests.reliability.workers import Job, run_jobs

FAULT_SEEDS, CLEAN_SEEDS, ENGINE_KILLS, AGENT_KILLS, STOP_ROUNDS, STORM_REQUESTS = 200, 190, 100, 100, 10, 5000
WORKERS = 2
DRILLS = ("faults", "clean", "stops", "kills", "storms", "tests")
ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reliability.md"
Result = TypeVar("Result", FaultResult, CleanResult)


def main() -> int:
    """Run the drills, print what failed, write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of every drill to run (%(default)s)")
    parser.add_argument("--only", choices=DRILLS, help="one drill; writes nothing")
    args = parser.parse_args()
    started = time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        drills = _run(args.scale, args.only, progress)
    for failure in drills.failures():
        print(failure, file=sys.stderr)
    if args.scale == 1.0 and args.only is None:
        write_report(REPORT, drills, minutes=(time.monotonic() - started) / 60)
        print(f"wrote {REPORT}", file=sys.stderr)
    print(f"{drills.runs()} runs, {len(drills.failures())} failed")
    return 1 if drills.failures() else 0


def _run(scale: float, only: str | None, progress: Progress) -> Drills:
    """The drills on the real clock mostly wait, so they run beside those on virtual clocks."""
    drills = Drills()
    with ThreadPoolExecutor(max_workers=1) as beside:
        real = beside.submit(_real_time, drills, scale, only, progress)
        _virtual_time(drills, scale, only, progress)
        real.result()
    if only in (None, "tests") and scale == 1.0:
        drills.tests = _tests()
    return drills


def _virtual_time(drills: Drills, scale: float, only: str | None, progress: Progress) -> None:
    if only in (None, "faults"):
        jobs = [(kind.value, seed) for kind in FaultKind for seed in range(_share(FAULT_SEEDS, scale))]
        drills.faults = list(_virtual(jobs, progress, "faults", FaultResult))
    if only in (None, "clean"):
        jobs = [("clean", seed) for seed in range(_share(CLEAN_SEEDS, scale))]
        drills.clean = list(_virtual(jobs, progress, "clean storms", CleanResult))


def _real_time(drills: Drills, scale: float, only: str | None, progress: Progress) -> None:
    if only in (None, "stops"):
        task = progress.add_task("stops", total=_share(STOP_ROUNDS, scale))
        with memory_directory() as directory:
            drills.stops = run_stops(directory, rounds=_share(STOP_ROUNDS, scale), tick=_ticker(progress, task))
    if only in (None, "kills"):
        rounds, agents = _share(ENGINE_KILLS, scale), _share(AGENT_KILLS, scale)
        task = progress.add_task("kills", total=rounds + agents)
        with memory_directory() as directory:
            drills.kills = run_kills(
                directory, rounds=rounds, agent_rounds=agents, seed=0, tick=_ticker(progress, task)
            )
    if only in (None, "storms"):
        requests = _share(STORM_REQUESTS, scale)
        task = progress.add_task("storms on the model", total=-(-requests // REQUESTS_PER_STORM))
        with memory_directory() as directory:
            drills.storms = run_storms(directory, requests=requests, tick=_ticker(progress, task))


def _tests() -> TestDrills:
    """The drills that are tests of one module: `pytest -m drill`."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "drill", "-n", str(WORKERS), "--timeout", "3600"]
    run = subprocess.run([*command, "--junitxml", "/dev/stdout"], cwd=ROOT, capture_output=True, text=True, check=False)
    return TestDrills.parse(run.stdout)


def _share(whole: int, scale: float) -> int:
    return max(1, round(whole * scale))


def _ticker(progress: Progress, task: TaskID) -> Callable[[], None]:
    return lambda: progress.advance(task)


def _virtual(jobs: Sequence[Job], progress: Progress, name: str, kind: type[Result]) -> Iterator[Result]:
    """Results of runs on virtual engines, in the order of the jobs, a few at a time."""
    task = progress.add_task(name, total=len(jobs))
    for result in run_jobs(jobs, workers=WORKERS):
        assert isinstance(result, kind)
        progress.advance(task)
        yield result


if __name__ == "__main__":
    sys.exit(main())
