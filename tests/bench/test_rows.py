"""The rows measure the real thing: what is made slow, wrong or idle shows in the exit code."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bench import reader, throughput
from bench.__main__ import main
from bench.effort import Effort
from bench.errors import BenchError
from bench.rows import ROWS
from bench.scraper import Scraper
from bench.steady import Load, SteadyEngine
from bench.tmpfs import ledger_directory
from kvledger.writer import Ledger
from kvledger_engine.ids import Integers
from kvledger_engine.pool import BlockPool

pytestmark = pytest.mark.needs("tmpfs")


def test_every_row_is_named_once() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_a_slow_publication_misses_its_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = Ledger.publish_now

    def slow(ledger: Ledger, *, idle: bool = True) -> None:
        publish(ledger, idle=idle)
        time.sleep(0.002)

    monkeypatch.setattr("bench.publication.PUBLICATIONS_PER_WINDOW", 5)
    monkeypatch.setattr(Ledger, "publish_now", slow)
    assert main(["--only", "publication", "--quick"], path=tmp_path / "page.md") == 1
    assert "missed: an empty publication" in capsys.readouterr().out


def test_a_slow_pool_misses_its_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = BlockPool.release

    def slow(pool: BlockPool, blocks: Integers) -> None:
        release(pool, blocks)
        time.sleep(0.005)

    monkeypatch.setattr(BlockPool, "release", slow)
    assert main(["--only", "pool", "--quick"], path=tmp_path / "page.md") == 1


def test_the_steady_engine_stays_full_while_sequences_end_and_follow() -> None:
    with ledger_directory() as directory:
        engine = SteadyEngine(directory, sequences=4, load=Load(output_tokens=8))
        for _ in range(40):
            engine.step()
        engine.require_steady()
        values, stats = engine.ledger.stats.values, engine.ledger.stats
        assert values[stats.counter("generation_tokens_total")] >= 4 * 40
        assert stats.tenant_counter("requests_total", finish_reason="length").sum() >= 4 * 40 / 8
        engine.close()


def test_the_reader_row_audits_a_busy_ledger_and_names_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "QUICK_BLOCKS", 8192)
    monkeypatch.setattr(reader, "QUICK_INTERVAL_SECONDS", 0.05)
    (result,) = reader.measure(Effort(quick=True))
    named = {quantity.name: quantity.estimate.value for quantity in result.quantities}
    assert result.estimate.windows == 8
    assert 0 < named["sample, processor time"] < 1000
    assert 50 < named["blocks judged in a look"] <= 100
    assert any(fact.startswith("the writer made ") for fact in result.facts)


def test_a_fault_in_the_ledger_under_audit_is_no_measurement() -> None:
    with ledger_directory() as directory:
        engine = SteadyEngine(directory, sequences=4)
        ledger = engine.ledger
        ledger.begin()
        block = np.flatnonzero(ledger.blocks.ref_count[:] > 0)[:1]
        ledger.stamp(block)
        ledger.blocks.ref_count[block] += 1
        ledger.end()
        copy = directory / "copy" / "ledger"
        copy.parent.mkdir(mode=0o750)
        copy.write_bytes(bytes(ledger.image))
        watcher = reader.Watcher(copy)
        with pytest.raises(BenchError, match="a healthy ledger has suspects"):
            watcher.look()
        watcher.close()
        engine.close()


@pytest.fixture
def broken_agent() -> Iterator[str]:
    """Answers every scrape with an error page."""

    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"stale")

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_scrape_that_is_refused_is_no_measurement(broken_agent: str) -> None:
    scraper = Scraper(broken_agent)
    with pytest.raises(BenchError, match="answered 503"):
        scraper.scrape()
    scraper.close()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("distribution")
def test_the_throughput_row_counts_the_tokens_that_clients_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "WARM_UP_SECONDS", 0.5)
    (result,) = throughput.measure(Effort(quick=True))
    read = result.quantities[0].estimate.value
    assert result.estimate.value > 64
    assert 0.5 < read / result.estimate.value < 2, (read, result.estimate.value)
    assert result.met is None
