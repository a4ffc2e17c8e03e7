"""What is counted while a run goes on. Every request sent is counted once when it ends; nothing is derived here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvledger_agent.load.latency import Latencies
from kvledger_agent.load.outcome import EndKind, Outcome

MAX_WORDS = 64
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands, for a progress line. Counts of requests, except `elapsed_seconds` and `output_tokens`."""

    elapsed_seconds: float
    sent: int
    in_flight: int
    completed: int
    rejected: int
    failed: int
    output_tokens: int


class Tally:
    """Counters and distributions of one run."""

    def __init__(self) -> None:
        """Nothing sent."""
        self.arrivals = 0
        self.dropped = 0
        self.sent = 0
        self.reconnects = 0
        self.peak_in_flight = 0
        self.ends: Counter[EndKind] = Counter()
        self.rejections: Counter[str] = Counter()
        self.rejection_statuses: Counter[int] = Counter()
        self.failures: Counter[str] = Counter()
        self.cancelled_before_first_token = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.first_token = Latencies()
        self.inter_token = Latencies()
        self.total = Latencies()
        self.no_token = Latencies()
        self.lateness = Latencies()

    @property
    def in_flight(self) -> int:
        """Requests sent that have not ended."""
        return self.sent - self.ends.total()

    def count_sent(self) -> None:
        """A request goes out."""
        self.sent += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def count_cut(self) -> None:
        """A request was still open when the run ended."""
        self.ends[EndKind.CUT] += 1

    def count(self, outcome: Outcome) -> None:
        """A request ended."""
        ending = outcome.ending
        self.ends[ending.kind] += 1
        if ending.kind is EndKind.REJECTED:
            _count_word(self.rejections, ending.detail)
            self.rejection_statuses[ending.status or 200] += 1
        elif ending.kind is EndKind.FAILED:
            _count_word(self.failures, ending.detail)
        elif ending.kind is EndKind.CANCELLED and outcome.first_token_seconds is None:
            self.cancelled_before_first_token += 1
        self._measure(outcome)

    def progress(self, elapsed_seconds: float) -> Progress:
        """The counts as they stand."""
        return Progress(
            elapsed_seconds=elapsed_seconds,
            sent=self.sent,
            in_flight=self.in_flight,
            completed=self.ends[EndKind.COMPLETED],
            rejected=self.ends[EndKind.REJECTED],
            failed=self.ends[EndKind.FAILED],
            output_tokens=self.output_tokens,
        )

    def _measure(self, outcome: Outcome) -> None:
        kind = outcome.ending.kind
        self.lateness.observe(outcome.late_seconds)
        self.output_tokens += outcome.output_tokens
        if kind is not EndKind.REJECTED:
            self.prompt_tokens += outcome.prompt_tokens
        if outcome.first_token_seconds is not None:
            self.first_token.observe(outcome.first_token_seconds)
        elif kind is not EndKind.REJECTED:
            self.no_token.observe(outcome.total_seconds)
        for gap_seconds in outcome.token_gaps_seconds:
            self.inter_token.observe(gap_seconds)
        if kind is EndKind.COMPLETED:
            self.total.observe(outcome.total_seconds)


def _count_word(counter: Counter[str], word: str | None) -> None:
    # A peer makes up these words: it must not be able to fill our memory with them.
    known = word if word is not None and (word in counter or len(counter) < MAX_WORDS) else OTHER
    counter[known] += 1
