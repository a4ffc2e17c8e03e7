"""Readers of public request traces: Mooncake JSONL and Azure CSV, told apart by their first line. Scales nothing."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from kvledger_agent.errors import TraceError

MOONCAKE_BLOCK_TOKENS = 512
MOST_TOKENS = 10_000_000
"""Of one prompt or answer: beyond every model's context, and still a prompt that can be written."""
MOST_LINE_CHARACTERS = 1 << 24
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_REMEDY = (
    "bring a Mooncake JSONL (timestamp, input_length, output_length, hash_ids) or an Azure CSV ("
    + ",".join(AZURE_COLUMNS)
    + ")"
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        at_seconds: from the trace's first request.
        prompt_tokens: as recorded, at least 1.
        output_tokens: as recorded, at least 1.
        hash_ids: one id per `MOONCAKE_BLOCK_TOKENS` of prompt, equal ids for equal content; None if not recorded.
    """

    at_seconds: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace, in order of time.

    Attributes:
        name: the file's name, without its folder.
        format: `mooncake` or `azure`.
        rows: at least one.
    """

    name: str
    format: str
    rows: tuple[TraceRow, ...]


def read_trace(path: Path) -> Trace:
    """Read and check a whole trace, so that a bad row is found before the first request is sent.

    Raises:
        TraceError: the file cannot be opened, its format is not known, or a row is bad (file, line and remedy given).
    """
    try:
        if not path.is_file():
            raise TraceError(f"{path} is no file; {_REMEDY}")
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(MOST_LINE_CHARACTERS)
            file.seek(0)
            format_name, parse = _format_of(first, path)
            rows = sorted(parse(file, path), key=lambda row: row.at_seconds)
    except (OSError, ValueError, csv.Error) as error:
        raise TraceError(f"{path}: {error}; give the path of a readable text file") from error
    if not rows:
        raise TraceError(f"{path}: no request in it; {_REMEDY}")
    return Trace(name=path.name, format=format_name, rows=tuple(_from_zero(rows)))


Parser = Callable[[TextIO, Path], Iterator[TraceRow]]


def _format_of(first_line: str, path: Path) -> tuple[str, Parser]:
    if first_line.lstrip().startswith("{"):
        return "mooncake", _mooncake_rows
    if set(AZURE_COLUMNS) <= {column.strip() for column in first_line.split(",")}:
        return "azure", _azure_rows
    raise TraceError(f"{path}:1: neither a JSON object nor the columns {','.join(AZURE_COLUMNS)}; {_REMEDY}")


def _mooncake_rows(file: TextIO, path: Path) -> Iterator[TraceRow]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            yield _mooncake_row(json.loads(line))
        except _BAD as error:
            raise _bad_row(path, number, error) from error


def _mooncake_row(record: dict[str, object]) -> TraceRow:
    hash_ids = record["hash_ids"]
    if not isinstance(hash_ids, list) or not all(isinstance(hash_id, int) for hash_id in hash_ids):
        raise ValueError(f"hash_ids is {str(hash_ids)[:40]!r}, not a list of integers")
    return TraceRow(
        at_seconds=_number(record["timestamp"], "timestamp") / 1000.0,
        prompt_tokens=_tokens(record["input_length"], "input_length"),
        output_tokens=_tokens(record["output_length"], "output_length"),
        hash_ids=tuple(hash_ids),
    )


def _azure_rows(file: TextIO, path: Path) -> Iterator[TraceRow]:
    reader = csv.reader(file)
    columns = [column.strip() for column in next(reader)]
    try:
        for fields in filter(None, reader):
            yield _azure_row(dict(zip(columns, fields, strict=False)))
    except _BAD as error:
        raise _bad_row(path, reader.line_num, error) from error


def _azure_row(record: dict[str, str]) -> TraceRow:
    # The file has seven decimal places, one more than datetime reads.
    whole, _, fraction = record["TIMESTAMP"].strip().partition(".")
    at_seconds = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds()
    return TraceRow(
        at_seconds=at_seconds + (_fraction(fraction) if fraction else 0.0),
        prompt_tokens=_tokens(record["ContextTokens"], "ContextTokens"),
        output_tokens=_tokens(record["GeneratedTokens"], "GeneratedTokens"),
        hash_ids=None,
    )


def _fraction(digits: str) -> float:
    if not digits.isdecimal():
        raise ValueError(f"TIMESTAMP ends in {digits[:40]!r}, not in digits")
    return float(f"0.{digits}")


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{field} is {str(value)[:40]!r}, not a number")
    return float(value)


def _tokens(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{field} is {str(value)[:40]!r}, not a whole number of tokens")
    if not 0 <= int(value) <= MOST_TOKENS:
        raise ValueError(f"{field} is {str(value)[:40]}, not from 0 to {MOST_TOKENS:,}")
    return max(1, int(value))


_BAD = (KeyError, TypeError, ValueError, OverflowError, RecursionError, csv.Error)
"""What reading a row can end in, whatever is in it."""


def _bad_row(path: Path, line: int, error: Exception) -> TraceError:
    what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return TraceError(f"{path}:{line}: {what}; mend or remove this row, or {_REMEDY}")


def _from_zero(rows: list[TraceRow]) -> Iterator[TraceRow]:
    start_seconds = rows[0].at_seconds
    for row in rows:
        yield TraceRow(row.at_seconds - start_seconds, row.prompt_tokens, row.output_tokens, row.hash_ids)
