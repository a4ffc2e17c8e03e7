"""The committed page, docs/benchmarks.md, out of a report. Formats measured values; holds none of its own."""

from __future__ import annotations

from bench.estimate import CONFIDENCE, Estimate
from bench.report import Report
from bench.result import Result

HEAD = f"""# Benchmarks: what it costs

Written by `make bench`; every figure on this page was measured by that run, and a missed bar makes it exit 1. Figures
are ratios or shares of things measured in the same run, in windows taken in turns (A B A B …), so that a slow moment
hits both sides. The value is the median of the windows unless a line says p99, the interval its {CONFIDENCE:.0%}
bootstrap confidence interval, p10–p90 the spread of the windows. A bar is met when the whole interval is on its good
side. Times are wall times where nothing else is said. `python -m bench --only ROW --quick` tries one row out and
writes nothing.
"""
TABLE_HEAD = "| row | measured | value | interval | p10–p90 | windows | bar | met |\n|---|---|---|---|---|---|---|---|"
QUANTITIES_HEAD = "| behind it | median | interval | p10–p90 | windows |\n|---|---|---|---|---|"


def page(report: Report) -> str:
    """The whole page as Markdown."""
    rows = dict.fromkeys(result.row for result in report.results)
    sections = [_section(row, [result for result in report.results if result.row == row]) for row in rows]
    table = "\n".join([TABLE_HEAD, *map(_line, report.results)])
    return "\n".join([HEAD, _machine(report), table + "\n", _verdict(report), *_skipped(report), *sections])


def number(value: float) -> str:
    """Three significant digits, without an exponent; whole numbers from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):.10g}"


def figure(value: float, unit: str) -> str:
    """A number with its unit."""
    return f"{number(value)} {unit}".rstrip()


def interval(estimate: Estimate) -> str:
    """The confidence interval."""
    return f"{number(estimate.low)} – {number(estimate.high)}"


def spread(estimate: Estimate) -> str:
    """p10 and p90 of the windows."""
    return f"{number(estimate.p10)} – {number(estimate.p90)}"


def bar_text(result: Result) -> str:
    """The bar, a dash without one."""
    return "–" if result.bar is None else f"{result.bar.sense} {figure(result.bar.limit, result.unit)}"


def verdict_text(result: Result) -> str:
    """`yes`, `no`, or a dash where there is no bar."""
    return "–" if result.met is None else "yes" if result.met else "**no**"


def missed_text(result: Result) -> str:
    """A missed bar in one line."""
    shown = f"{figure(result.estimate.value, result.unit)} ({interval(result.estimate)})"
    return f"{result.name}: {shown}, bar {bar_text(result)}"


def _machine(report: Report) -> str:
    machine = report.machine
    return (
        f"Machine: {machine.cores} cores, {machine.cpu_model}, {machine.architecture}, Linux {machine.kernel}, load "
        f"average {machine.load_1m:.2f} when the run began; Python {machine.python}, numpy {machine.numpy}, "
        f"kvledger {machine.kvledger}.\n"
    )


def _line(result: Result) -> str:
    estimate = result.estimate
    cells = (
        f"`{result.row}`",
        result.name,
        figure(estimate.value, result.unit),
        interval(estimate),
        spread(estimate),
        str(estimate.windows),
        bar_text(result),
        verdict_text(result),
    )
    return f"| {' | '.join(cells)} |"


def _verdict(report: Report) -> str:
    barred = [result for result in report.results if result.bar is not None]
    if not report.missed:
        return f"{len(barred)} bars, all met.\n"
    lines = [f"- {missed_text(result)}" for result in report.missed]
    return "\n".join([f"{len(barred)} bars, {len(report.missed)} missed:\n", *lines]) + "\n"


def _skipped(report: Report) -> list[str]:
    """A paragraph if any row was left out."""
    if not report.skipped:
        return []
    lines = [f"- `{skipped.row}`: {skipped.why}" for skipped in report.skipped]
    return ["\n".join([f"Skipped rows: {len(report.skipped)}, for which nothing here stands:\n", *lines]) + "\n"]


def _section(row: str, results: list[Result]) -> str:
    hows = dict.fromkeys(" ".join(result.how.split()) for result in results)
    facts = dict.fromkeys(fact for result in results for fact in result.facts)
    quantities = [
        f"| {q.name} | {figure(q.estimate.value, q.unit)} | {interval(q.estimate)} | {spread(q.estimate)} "
        f"| {q.estimate.windows} |"
        for result in results
        for q in result.quantities
    ]
    parts = [f"## {row}\n", *(f"{how}\n" for how in hows), "\n".join([QUANTITIES_HEAD, *quantities]) + "\n"]
    if facts:
        parts.append(f"In this run: {'; '.join(facts)}.\n")
    return "\n".join(parts)
