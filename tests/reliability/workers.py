"""Processes that work through virtual runs, each with one engine child that lives through all of its runs."""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from kvledger_engine.faults import FaultKind
from tests.children import memory_directory
from tests.reliability.clean import CleanResult, run_clean
from tests.reliability.faults import FaultResult, run_fault
from tests.reliability.virtual import EngineHandle, virtual_engine

Job = tuple[str, int]
"""(fault, or `clean`; seed)"""

_engines: list[EngineHandle] = []


def run_jobs(jobs: Sequence[Job], *, workers: int) -> Iterator[FaultResult | CleanResult]:
    """Results in the order of the jobs."""
    with ProcessPoolExecutor(workers, mp.get_context("spawn"), initializer=_own_engine) as pool:
        yield from pool.map(_one, jobs, chunksize=5)


def _own_engine() -> None:
    # Virtual time is in no hurry; the drills on the real clock, which run beside, are.
    os.nice(10)
    life = virtual_engine()
    _engines.append(life.__enter__())
    atexit.register(life.__exit__, None, None, None)


def _one(job: Job) -> FaultResult | CleanResult:
    name, seed = job
    with memory_directory() as directory:
        if name == "clean":
            return run_clean(_engines[0], seed, directory)
        return run_fault(_engines[0], FaultKind(name), seed, directory)
