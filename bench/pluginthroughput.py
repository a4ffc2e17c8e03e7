"""Row `plugin-throughput`: output tokens a second of a vLLM server with the plugin against without."""

from __future__ import annotations

from bench.answers import Answer, ask
from bench.effort import Effort
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.vllmenv import vllm_python

NAME = "plugin-throughput"
BAR = Bar(Sense.AT_LEAST, 0.99)
HOW = """For each of two models one vLLM server, as many requests running all the time, from the official client in a
process of its own, prompts of 64 tokens, requests ending and coming at even distances. Between two windows of 128
steps, or of 32, the hooks are taken out of the engine core or put in again and everything is told anew, which is not
measured, nor is a quarter as many steps after it. Tokens are counted and timed where they leave the engine core. A
window with the hooks must have a message of the tap a step, one without none, and nothing of the hooks in the
scheduler. Wall time; server, client and the mirror's process share the machine. The tiny Llama of the tests is the
worst there can be: a step of it is hardly more than vLLM's own work, and where the machine has two cores its line
counts what the mirror takes from the engine, too."""


def measure(effort: Effort) -> list[Result]:
    """Windows with and without in turns. Raises `NotHere` where there is no vLLM."""
    return results(ask("bench.vllm_throughput", effort, python=vllm_python()))


def results(answer: Answer) -> list[Result]:
    """A line for each model of the answer."""
    return [_result(answer, name.removesuffix(", with")) for name in answer.figures if name.endswith(", with")]


def _result(answer: Answer, model: str) -> Result:
    alone, plugged = answer.figures[f"{model}, without"], answer.figures[f"{model}, with"]
    step_ms = 1e3 * answer.figures[f"{model}, without, step"]
    return Result(
        row=NAME,
        name=f"output tokens/s of vLLM, {model}: with the plugin over without",
        estimate=estimate(plugged / alone),
        unit="×",
        how=HOW,
        bar=BAR,
        quantities=(
            Quantity("with the plugin", estimate(plugged), "tokens/s"),
            Quantity("without", estimate(alone), "tokens/s"),
            Quantity("a step without", estimate(step_ms), "ms"),
        ),
        facts=answer.facts,
    )
