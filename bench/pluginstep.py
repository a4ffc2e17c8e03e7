"""Row `plugin-step`: what the plugin adds to a step of vLLM's own scheduler."""

from __future__ import annotations

import numpy as np

from bench.answers import Answer, ask
from bench.effort import Effort
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.vllmenv import vllm_python

NAME = "plugin-step"
RUNNING, STEPS = 256, 100
ADDED_BAR, SHARE_BAR = Bar(Sense.AT_MOST, 100.0), Bar(Sense.AT_MOST, 3.0)
HOW = f"""One scheduler of vLLM with outputs that are made up, {RUNNING} requests running, asynchronous scheduling as
is its default. Before each window of {STEPS} steps the hooks are put in or taken out, in turns, and what they have
missed is told before the window begins. Figures are processor time of the thread that schedules, `schedule` and
`update_from_output` with the hooks. Steady: all decode; changing: requests come and go in nearly every step. vLLM
alone is measured twice in each round, which shows what chance adds. The mirror's own processor time, in its process on
another core, is a figure of its own."""


def measure(effort: Effort) -> list[Result]:
    """Windows with and without in turns. Raises `NotHere` where there is no vLLM."""
    return results(ask("bench.vllm_cost", effort, python=vllm_python()))


def results(answer: Answer) -> list[Result]:
    """The lines of the table."""
    return [line for kind in ("steady", "changing") for line in _lines(answer, kind, barred=kind == "steady")]


def _lines(answer: Answer, kind: str, *, barred: bool) -> list[Result]:
    alone, plugged, again, mirror = (
        answer.figures[f"{kind} {name}"] for name in ("without", "with", "again", "mirror")
    )
    added = plugged - alone
    added_line = Result(
        row=NAME,
        name=f"added to a step of {RUNNING} running requests, {kind}",
        estimate=estimate(added),
        unit="µs",
        how=HOW,
        bar=ADDED_BAR if barred else None,
        quantities=(
            Quantity(f"schedule and update, vLLM alone, {kind}", estimate(alone), "µs"),
            Quantity(f"the same against itself: what chance adds, {kind}", estimate(again - alone), "µs"),
            Quantity(f"processor time of the mirror a step, {kind}", estimate(mirror), "µs"),
        ),
        facts=answer.facts,
    )
    share_line = Result(
        row=NAME,
        name=f"the same as a share of vLLM's control time, {kind}",
        estimate=estimate(100 * added / float(np.median(alone))),
        unit="%",
        how=HOW,
        bar=SHARE_BAR if barred else None,
        facts=answer.facts,
    )
    return [added_line, share_line]
