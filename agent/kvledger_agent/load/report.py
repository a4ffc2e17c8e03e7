"""The report of a run: one frozen record, as JSON data and as a table. Computes rates only; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from kvledger_agent.load.latency import LatencySummary
from kvledger_agent.load.outcome import EndKind
from kvledger_agent.load.plan import LoadPlan
from kvledger_agent.load.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a run did and what its clients saw.

    sent = completed + rejected + cancellations + timeouts + failed + cut, and
    arrivals + reconnects = sent + dropped. Latencies count from the intended send time.

    Attributes:
        base_url, model: what was loaded.
        seed: of the plan.
        parameters: all that determines the plan.
        interrupted: stopped before its plan was at its end.
        elapsed_seconds: from the start to the last request's end.
        arrivals: planned requests whose time came.
        dropped: arrivals not sent because `max_in_flight` were open.
        sent: requests sent, reconnects included.
        reconnects: requests sent again after a drop.
        peak_in_flight: most requests open at once.
        rejections: refusals by reason; `rejection_statuses` the same by HTTP status.
        cancellations: dropped by their client's fate; `cancelled_before_first_token` of them saw no token.
        timeouts: given up by their client.
        failures: other faults by kind.
        cut: still open when the run ended.
        time_to_first_token: of all requests that got a token, however they ended.
        inter_token_latency: between successive tokens of a request.
        request_duration: of completed requests.
        no_token_duration: of requests, refusals aside, that ended without a token; not part of time_to_first_token.
        generator_lateness: actual minus intended send time, the generator's own fault.
        prompt_tokens: of requests that were not refused or cut.
        output_tokens: tokens received, cut requests aside.
    """

    base_url: str
    model: str
    seed: int
    parameters: Mapping[str, object]
    interrupted: bool
    elapsed_seconds: float
    arrivals: int
    dropped: int
    sent: int
    reconnects: int
    peak_in_flight: int
    completed: int
    rejected: int
    rejections: Mapping[str, int]
    rejection_statuses: Mapping[str, int]
    cancellations: int
    cancelled_before_first_token: int
    timeouts: int
    failed: int
    failures: Mapping[str, int]
    cut: int
    prompt_tokens: int
    output_tokens: int
    sent_per_second: float
    output_tokens_per_second: float
    time_to_first_token: LatencySummary
    inter_token_latency: LatencySummary
    request_duration: LatencySummary
    no_token_duration: LatencySummary
    generator_lateness: LatencySummary


def report_of(
    tally: Tally, plan: LoadPlan, *, base_url: str, model: str, interrupted: bool, elapsed_seconds: float
) -> LoadReport:
    """Freeze a tally whose requests have all ended."""
    assert tally.in_flight == 0, f"{tally.in_flight} requests were never counted as ended"
    elapsed = max(elapsed_seconds, 1e-9)
    return LoadReport(
        base_url=base_url,
        model=model,
        seed=plan.seed,
        parameters=plan.parameters(),
        interrupted=interrupted,
        elapsed_seconds=elapsed_seconds,
        arrivals=tally.arrivals,
        dropped=tally.dropped,
        sent=tally.sent,
        reconnects=tally.reconnects,
        peak_in_flight=tally.peak_in_flight,
        completed=tally.ends[EndKind.COMPLETED],
        rejected=tally.ends[EndKind.REJECTED],
        rejections=dict(tally.rejections.most_common()),
        rejection_statuses={str(status): count for status, count in sorted(tally.rejection_statuses.items())},
        cancellations=tally.ends[EndKind.CANCELLED],
        cancelled_before_first_token=tally.cancelled_before_first_token,
        timeouts=tally.ends[EndKind.TIMED_OUT],
        failed=tally.ends[EndKind.FAILED],
        failures=dict(tally.failures.most_common()),
        cut=tally.ends[EndKind.CUT],
        prompt_tokens=tally.prompt_tokens,
        output_tokens=tally.output_tokens,
        sent_per_second=tally.sent / elapsed,
        output_tokens_per_second=tally.output_tokens / elapsed,
        time_to_first_token=tally.first_token.summary(),
        inter_token_latency=tally.inter_token.summary(),
        request_duration=tally.total.summary(),
        no_token_duration=tally.no_token.summary(),
        generator_lateness=tally.lateness.summary(),
    )


def render(report: LoadReport) -> RenderableType:
    """Two tables for people: what became of the requests, and how long things took."""
    return Group(_ends_table(report), _latency_table(report))


def _ends_table(report: LoadReport) -> Table:
    table = Table(title=f"{report.base_url} · {report.model} · seed {report.seed}", title_justify="left")
    table.add_column("requests")
    table.add_column("count", justify="right")
    rows: list[tuple[str, int]] = [
        (f"sent ({report.sent_per_second:.1f}/s, {report.reconnects} reconnects)", report.sent),
        ("completed", report.completed),
        ("rejected", report.rejected),
        *((f"  {reason}", count) for reason, count in report.rejections.items()),
        (f"cancelled ({report.cancelled_before_first_token} before the first token)", report.cancellations),
        ("timed out", report.timeouts),
        ("failed", report.failed),
        *((f"  {what}", count) for what, count in report.failures.items()),
        ("cut at the end", report.cut),
        ("dropped by this generator (too many in flight)", report.dropped),
        ("prompt tokens", report.prompt_tokens),
        (f"output tokens ({report.output_tokens_per_second:.0f}/s)", report.output_tokens),
    ]
    for name, count in rows:
        table.add_row(name, f"{count:,}")
    return table


def _latency_table(report: LoadReport) -> Table:
    table = Table(title="seconds, from the intended send time", title_justify="left")
    for column in ("", "count", "p50", "p95", "p99", "max"):
        table.add_column(column, justify="right" if column else "left")
    for name, summary in (
        ("time to first token", report.time_to_first_token),
        ("inter-token latency", report.inter_token_latency),
        ("request duration, completed", report.request_duration),
        ("ended without a token", report.no_token_duration),
        ("lateness of this generator", report.generator_lateness),
    ):
        quantiles = (summary.p50_seconds, summary.p95_seconds, summary.p99_seconds, summary.max_seconds)
        table.add_row(name, f"{summary.count:,}", *("–" if value is None else f"{value:.4f}" for value in quantiles))
    return table
