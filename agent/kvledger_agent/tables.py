"""The tables of findings and of requests, laid out for the columns there are. Formats; computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.finding import Finding, RequestRef
from kvledger_agent.findings import merged
from kvledger_agent.request_rows import RequestRow

UNKNOWN = "unknown"
NARROW_COLUMNS = 106  # inside a panel of 110 columns
LEAST_COLUMNS_OF_ONE_LINE, COLUMNS_OF_ONE_LINE_REFS = 90, 140
MOST_ROWS = 40
MOST_CANDIDATES = 4
ID_CELLS, LEAST_ID_CELLS = 15, 9
TENANT_CELLS, NARROW_TENANT_CELLS = 16, 10
_WORDS = frozenset({"request", "tenant", "state", "waited"})


def findings_table(findings: Iterable[Finding]) -> RenderableType:
    """Findings with their evidence: one row per kind, owner and what is known."""
    rows = merged(findings)
    return _ByWidth(lambda width: _findings_at(rows, width))


def request_table(rows: Sequence[RequestRow]) -> RenderableType:
    """Who holds what: the requests with the most blocks first, at most `MOST_ROWS` of them."""
    largest = sorted(rows, key=lambda row: (-row.blocks, row.serial))
    return _ByWidth(lambda width: _requests_at(largest, width))


@dataclass(frozen=True, slots=True)
class _ByWidth:
    """What is laid out only when the columns it has are known."""

    build: Callable[[int], RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.build(options.max_width)


def _findings_at(findings: Iterable[Finding], width: int) -> Table:
    table = _table("findings", width)
    table.add_column("finding", no_wrap=True)
    table.add_column("blocks", max_width=20)
    table.add_column("who", no_wrap=True)
    table.add_column("what is known")
    between = " " if width >= COLUMNS_OF_ONE_LINE_REFS else "\n"
    for finding in findings:
        kind = "\n".join(filter(None, (finding.kind.word, _since(finding.since_wall_seconds))))
        table.add_row(kind, _block_list(finding), _who(finding, between), _known(finding))
    return table


def _known(finding: Finding) -> str:
    """What is known; of a scraped engine, also how sure it is and what cannot be told."""
    if finding.blind is None:
        return "\n".join(filter(None, (finding.known, _release(finding), _growth(finding))))
    return f"{finding.certainty.word}: {finding.known}\ncannot tell: {finding.blind}"


def _release(finding: Finding) -> str:
    """What should have released the blocks."""
    release = finding.release
    if release is None:
        return ""
    publication = f"publication {release.seq} (event {release.event})"
    return f"should have come back in {publication}, which says {release.blocks} blocks"


def _growth(finding: Finding) -> str:
    """How findings of the kind grow, if they do."""
    if not finding.blocks_per_minute or finding.seconds_to_exhaustion is None:
        return ""
    lasts = seconds_text(finding.seconds_to_exhaustion)
    return f"{finding.blocks_per_minute:+.1f} blocks/min of this kind: nothing is left in {lasts}"


def _requests_at(largest: Sequence[RequestRow], width: int) -> Table:
    wide = width >= NARROW_COLUMNS
    tokens = "computed/prompt+out" if wide else "computed/\nprompt+out"
    names = ("serial", "tenant", "state", "blocks", *(("shared",) if wide else ()), tokens, "waited", "age")
    cells = [_cells_of(row, width) for row in largest[:MOST_ROWS]]
    id_cells = max(LEAST_ID_CELLS, width - _width_of([names, *cells], gap=2 if wide else 1))
    table = _table("requests", width)
    for name in (names[0], "request", *names[1:]):
        table.add_column(name, no_wrap=True, justify="left" if name in _WORDS else "right")
    for row, (serial, *others) in zip(largest, cells, strict=False):
        table.add_row(serial, _request_id(row.id_head, row.id_tail, id_cells), *others)
    if len(largest) > MOST_ROWS:
        table.caption = f"… and {len(largest) - MOST_ROWS} more with fewer blocks"
    return table


def _cells_of(row: RequestRow, width: int) -> tuple[str, ...]:
    """One request's cells but its id; without `shared` where columns are few."""
    wide = width >= NARROW_COLUMNS
    return (
        str(row.serial),
        _shortened(row.tenant, TENANT_CELLS if wide else NARROW_TENANT_CELLS),
        row.state,
        str(row.blocks),
        *((str(row.shared_blocks),) if wide else ()),
        f"{row.computed_tokens}/{row.prompt_tokens}+{row.max_tokens}",
        _waits(row, " " if width >= LEAST_COLUMNS_OF_ONE_LINE else "\n"),
        seconds_text(row.age_seconds),
    )


def _width_of(rows: Iterable[Sequence[str]], *, gap: int) -> int:
    """Columns of the screen that these take, with a gap after each and one more."""
    columns = zip(*rows, strict=True)
    return gap + sum(gap + max(len(line) for cell in column for line in cell.split("\n")) for column in columns)


def instant_text(wall_ns: int) -> str:
    """A wall-clock time in UTC, to the second; unknown where no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(wall_ns // NS_PER_SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def seconds_text(value: float) -> str:
    """A length of time with three digits or more."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.{int(value < 100)}f} s"


def _since(wall_seconds: float | None) -> str:
    """`since HH:MM:SS` in local time, with the date if it was not today; empty where the wall time is unknown."""
    if wall_seconds is None:
        return ""
    began = datetime.fromtimestamp(wall_seconds)
    return f"since {began:%H:%M:%S}" if began.date() == date.today() else f"since {began:%m-%d}\n{began:%H:%M:%S}"


def _block_list(finding: Finding) -> str:
    listed = ", ".join(str(block) for block in finding.blocks[:8])
    if finding.block_count is None:
        return UNKNOWN
    more = finding.block_count - min(8, len(finding.blocks))
    return f"{listed}, … {more} more" if more > 0 and listed else listed or str(finding.block_count)


def _who(finding: Finding, between: str) -> str:
    if finding.owner is not None:
        return _ref("owner", finding.owner, between)
    named = [_ref("candidate", ref, between) for ref in finding.candidates[:MOST_CANDIDATES]]
    if (more := len(finding.candidates) - len(named)) > 0:
        named.append(f"… {more} more")
    return "\n".join(named) or UNKNOWN


def _ref(role: str, ref: RequestRef, between: str) -> str:
    """A request: its serial, tenant, id, and how it ended; `between` these is a space, or a new line."""
    tenant = "" if ref.tenant is None else f", {_shortened(ref.tenant, TENANT_CELLS)}"
    end = "live" if ref.live else (ref.ended or "ended").replace(":", ": ")
    known = (f"{role} {ref.serial}{tenant}", _request_id(ref.id_head, ref.id_tail, ID_CELLS), end)
    return between.join(part for part in known if part)


def _request_id(head: str | None, tail: str | None, cells: int) -> str:
    """The client's id: whole where its first 40 bytes are all of it and fit, otherwise its head…tail."""
    if head is None:
        return ""
    if len(head) < 40 or tail is None or head.endswith(tail):
        return _shortened(head, cells)
    return f"{head}…{tail}" if len(head) + 1 + len(tail) <= cells else _shortened(head + tail, cells)


def _shortened(text: str, cells: int) -> str:
    """Text of at most so many characters: where it is longer, its middle gives way to `…`."""
    if len(text) <= cells:
        return text
    tail = (cells - 1) * 2 // 5
    return f"{text[: cells - 1 - tail]}…{text[len(text) - tail :]}"


def _waits(row: RequestRow, between: str) -> str:
    """The longest wait, and how many more causes it waited for."""
    if not row.wait_seconds:
        return ""
    cause, seconds = max(row.wait_seconds.items(), key=lambda wait: wait[1])
    more = len(row.wait_seconds) - 1
    return f"{cause}{between}{seconds_text(seconds)}" + (f" +{more}" if more else "")


def _table(title: str, width: int) -> Table:
    """An empty table; where columns are few, one blank apart instead of two."""
    return Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, int(width >= NARROW_COLUMNS), 0, 0),
    )
