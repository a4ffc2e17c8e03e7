"""Traces are told apart by their first line, and a bad row is named by file and line before anything is sent."""

from __future__ import annotations

import math
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_agent.errors import TraceError
from kvledger_agent.load.traces import MOONCAKE_BLOCK_TOKENS, TraceRow, read_trace

REAL_TRACES = Path(__file__).parents[3] / "shared" / "traces"
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
    "\n"
    '{"timestamp": 3500, "input_length": 90, "output_length": 0, "hash_ids": [0]}\n'
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50,396,109"


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_a_mooncake_trace_is_recognised_and_counts_from_its_first_request(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE))

    assert trace.format == "mooncake"
    assert trace.rows == (TraceRow(0.0, 700, 5, (0, 1)), TraceRow(2.5, 90, 1, (0,)))


def test_an_azure_trace_is_recognised_with_seven_decimal_places(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE))

    assert trace.format == "azure"
    assert [(row.prompt_tokens, row.output_tokens, row.hash_ids) for row in trace.rows] == [
        (374, 44, None),
        (396, 109, None),
    ]
    assert trace.rows[1].at_seconds == pytest.approx(3.31941, abs=1e-5)


def test_rows_out_of_order_are_put_in_order_of_time(tmp_path: Path) -> None:
    header, first, second = AZURE.split("\r\n")
    trace = read_trace(written(tmp_path, "\n".join([header, second, first])))

    assert [row.prompt_tokens for row in trace.rows] == [374, 396]
    assert trace.rows[0].at_seconds == 0.0


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (MOONCAKE + '{"timestamp": 1', ":4:", "mend or remove this row"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 2}', ":4:", "hash_ids is missing"),
        (MOONCAKE.replace("700", '"x"'), ":1:", "invalid literal"),
        (MOONCAKE.replace("700", "-700"), ":1:", "-700, not from 0"),
        (MOONCAKE.replace("1000", "true"), ":1:", "timestamp is 'True'"),
        (MOONCAKE.replace("[0, 1]", "[0, null]"), ":1:", "not a list of integers"),
        ("{}\n", ":1:", "hash_ids is missing"),
        (AZURE + "\n2023-11-16 18:15:50,many,109", ":4:", "invalid literal"),
        (AZURE + "\n2023-11-16 18:15:50,7", ":4:", "GeneratedTokens"),
        (AZURE + "\nyesterday,7,7", ":4:", "yesterday"),
        *((MOONCAKE.replace("1000", odd), ":1:", "timestamp is") for odd in ("NaN", "Infinity", "-Infinity", "null")),
        (MOONCAKE.replace("1000", "1" + "0" * 400), ":1:", "too large"),
        (MOONCAKE.replace("700", "10000001"), ":1:", "not from 0 to 10,000,000"),
        (MOONCAKE.replace("[0, 1]", "[" * 100_000), ":1:", "recursion"),
        (AZURE + "\n2023-11-16 18:15:50.5e999,7,7", ":4:", "not in digits"),
        (AZURE + "\n2023-11-16 18:15:50.5," + "7" * 200_000 + ",7", ":4:", "field larger than field limit"),
        ("ContextTokens,GeneratedTokens,TIMESTAMP\n7,7\n", ":2:", "TIMESTAMP is missing"),
        ("a,b,c\n1,2,3\n", ":1:", "Mooncake JSONL"),
        ("", ":1:", "Mooncake JSONL"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_remedy(tmp_path: Path, text: str, where: str, what: str) -> None:
    path = written(tmp_path, text, "bad.trace")

    with pytest.raises(TraceError) as caught:
        read_trace(path)

    message = str(caught.value)
    assert f"bad.trace{where}" in message
    assert what in message
    assert "TIMESTAMP,ContextTokens,GeneratedTokens" in message


def test_a_trace_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="binary"):
        read_trace(tmp_path / "binary")


@given(st.binary(max_size=200), st.sampled_from(["", MOONCAKE, AZURE, AZURE + "\n", MOONCAKE[:-3], "{"]))
def test_any_bytes_are_a_trace_or_an_error_that_says_so(more: bytes, begin: str) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, suppress(TraceError):
        Path(file.name).write_bytes(begin.encode() + more)
        rows = read_trace(Path(file.name)).rows
        assert rows[0].at_seconds == 0
        assert all(math.isfinite(row.at_seconds) and row.at_seconds >= 0 for row in rows)


def test_what_is_no_file_is_not_read_at_all(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/zero")):
        with pytest.raises(TraceError, match="is no file; bring a Mooncake JSONL"):
            read_trace(place)


def test_spaces_around_columns_are_no_part_of_their_names(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, AZURE.replace(",", " , ", 2))).rows) == 2


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request in it"):
        read_trace(written(tmp_path, AZURE.split("\r\n")[0] + "\n"))


@pytest.mark.needs("traces")
def test_the_public_mooncake_trace_is_read_whole() -> None:
    trace = read_trace(REAL_TRACES / "conversation_trace.jsonl")

    assert (trace.format, len(trace.rows)) == ("mooncake", 12_031)
    assert trace.rows[-1].at_seconds == pytest.approx(3_537, abs=1)
    assert sum(row.prompt_tokens for row in trace.rows) / len(trace.rows) == pytest.approx(12_035, abs=1)
    assert all(
        row.hash_ids and len(row.hash_ids) == -(-row.prompt_tokens // MOONCAKE_BLOCK_TOKENS) for row in trace.rows
    )


@pytest.mark.needs("traces")
def test_the_public_azure_trace_is_read_whole() -> None:
    trace = read_trace(REAL_TRACES / "azure_conv.csv")

    assert (trace.format, len(trace.rows)) == ("azure", 19_366)
    assert trace.rows[-1].at_seconds == pytest.approx(3_501.7, abs=0.1)
    assert (trace.rows[0].prompt_tokens, trace.rows[0].output_tokens) == (374, 44)
