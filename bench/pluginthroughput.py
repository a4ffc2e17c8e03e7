"""Row `plugin-throughput`: output tokens a second of a vLLM server with the plugin against without."""

from __future__ import annotations

from bench.answers import Answer, ask
from bench.effort import Effort
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.vllmenv import vllm_python

NAME = "plugin-throughput"
BAR = Bar(Sense.AT_LEAST, 0.99)
HOW = """One vLLM server with the tiny Llama of the tests, 64 requests running all the time, from the official client
in a process of its own, requests ending and coming. Between two windows of 100 steps the hooks are taken out of the
engine core or put in again and everything is told anew, which is not measured, nor are the 40 steps after it. Tokens
are counted and timed where they leave the engine core. A window with the hooks must have a message of the tap a
step, one without none, and nothing of the hooks in the scheduler. Wall time; server, client and the mirror's process
share the machine, and where it has two cores this row counts what the mirror takes from the engine, too."""


def measure(effort: Effort) -> list[Result]:
    """Windows with and without in turns. Raises `NotHere` where there is no vLLM."""
    return [result(ask("bench.vllm_throughput", effort, python=vllm_python()))]


def result(answer: Answer) -> Result:
    """The line of the table."""
    alone, plugged = answer.figures["without"], answer.figures["with"]
    return Result(
        row=NAME,
        name="output tokens/s of vLLM, 64 running: with the plugin over without",
        estimate=estimate(plugged / alone),
        unit="×",
        how=HOW,
        bar=BAR,
        quantities=(
            Quantity("with the plugin", estimate(plugged), "tokens/s"),
            Quantity("without", estimate(alone), "tokens/s"),
        ),
        facts=answer.facts,
    )
