"""A directory of ledgers: engines come and go, the newest epoch wins, and a bad ledger stands alone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from kvledger.record import record
from kvledger_agent.directory import scan
from kvledger_agent.fleet import SourceHealth
from kvledger_agent.observation import Observation
from kvledger_agent.sources import LedgerSources
from tests.children import Spawn

CHILDREN = "tests.agent.children"


@contextmanager
def watching(directory: Path) -> Iterator[LedgerSources]:
    with closing(LedgerSources(directory)) as sources:
        yield sources


def by_key(seen: tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]) -> dict[str, tuple[str, Observation | None]]:
    observations = {o.identity.key: o for o in seen[0]}
    return {s.source: (s.status, observations.get(s.source)) for s in seen[1]}


def open_ledgers(directory: Path) -> list[str]:
    """What ledgers of a directory this process holds open; removed ones that are still held count too."""
    held = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own descriptor
            held.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in held if path.startswith(str(directory)) and ".kvledger" in path]


@pytest.mark.needs("tmpfs")
def test_one_bad_ledger_among_five_does_not_spoil_the_rest(memory: Path, spawn: Spawn) -> None:
    for engine in ("a", "b", "c", "d"):
        spawn(CHILDREN, "hold", memory, engine, 0)
    (memory / "bad.0.00000001.kvledger").write_bytes(b"KVLEDGER" + bytes(5000))

    with watching(memory) as sources:
        for _ in range(2):
            seen = by_key(sources.look())
            assert {key: status for key, (status, _) in seen.items()} == {
                "a:0": "idle",
                "b:0": "idle",
                "bad:0": "other_version",
                "c:0": "idle",
                "d:0": "idle",
            }
            assert [key for key, (_, observation) in seen.items() if observation is None] == ["bad:0"]


@pytest.mark.needs("tmpfs")
def test_every_way_of_being_unreadable_has_its_status(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "hold", memory, "whole", 0)
    whole = next(memory.glob("*.kvledger"))
    data = whole.read_bytes()
    (memory / "short.0.00000001.kvledger").write_bytes(data[: len(data) // 2])
    (memory / "tiny.0.00000001.kvledger").write_bytes(b"KV")
    (memory / "noise.0.00000001.kvledger").write_bytes(os.urandom(8192))
    (memory / "link.0.00000001.kvledger").symlink_to(whole)
    (memory / "liar.0.00000001.kvledger").write_bytes(data)
    (memory / "unnamed.kvledger").write_bytes(data)
    os.mkfifo(memory / "pipe.0.00000001.kvledger")

    with watching(memory) as sources:
        seen = by_key(sources.look())
        assert {key: status for key, (status, _) in seen.items()} == {
            "whole:0": "idle",
            "short:0": "truncated",
            "tiny:0": "truncated",
            "noise:0": "not_a_ledger",
            "link:0": "not_a_ledger",
            "liar:0": "not_a_ledger",
            "unnamed.kvledger": "not_a_ledger",
            "pipe:0": "not_a_ledger",
        }
        assert len(open_ledgers(memory)) == 1, "nothing that cannot be read is kept open"


@pytest.mark.needs("tmpfs")
def test_engines_come_and_go_and_a_removed_file_is_released(memory: Path, spawn: Spawn) -> None:
    with watching(memory) as sources:
        assert by_key(sources.look()) == {}

        first = spawn(CHILDREN, "hold", memory, "a", 0)
        spawn(CHILDREN, "hold", memory, "a", 1)
        assert set(by_key(sources.look())) == {"a:0", "a:1"}
        assert len(open_ledgers(memory)) == 2

        first.kill()
        first.wait()
        assert by_key(sources.look())["a:0"][0] == "dead"

        (memory / "a.0.00000001.kvledger").unlink()
        assert set(by_key(sources.look())) == {"a:1"}
        assert len(open_ledgers(memory)) == 1
    assert open_ledgers(memory) == []


@pytest.mark.needs("tmpfs")
def test_the_newest_epoch_wins_and_the_old_file_is_let_go(memory: Path, spawn: Spawn) -> None:
    with watching(memory) as sources:
        old = spawn(CHILDREN, "hold", memory, "a", 0)
        status, observation = by_key(sources.look())["a:0"]
        assert observation is not None
        assert (status, observation.identity.epoch) == ("idle", 1)
        old.send_signal(signal.SIGKILL)
        old.wait()
        spawn(CHILDREN, "hold", memory, "a", 0)

        status, observation = by_key(sources.look())["a:0"]

        assert observation is not None
        assert (status, observation.identity.epoch) == ("idle", 2)
        assert [Path(path).name for path in open_ledgers(memory)] == ["a.0.00000002.kvledger"]


@pytest.mark.needs("tmpfs")
def test_a_file_made_anew_under_the_same_name_is_read_anew(memory: Path, spawn: Spawn) -> None:
    with watching(memory) as sources:
        child = spawn(CHILDREN, "hold", memory, "a", 0)
        sources.look()
        child.kill()
        child.wait()
        for path in memory.glob("*.kvledger"):
            path.unlink()
        spawn(CHILDREN, "hold", memory, "a", 0)

        assert by_key(sources.look())["a:0"][0] == "idle"


def test_a_missing_directory_has_no_ledgers_until_it_appears(tmp_path: Path) -> None:
    with watching(tmp_path / "later") as sources:
        assert sources.look() == ((), ())
        (tmp_path / "later").mkdir()
        assert sources.look() == ((), ())
        shutil.rmtree(tmp_path / "later")
        assert sources.look() == ((), ())


@pytest.mark.parametrize("kind", ["a file", "a loop of links", "a name that is too long"])
def test_a_directory_that_cannot_be_listed_is_a_source_with_its_trouble_and_does_not_look_like_no_engine(
    tmp_path: Path, kind: str
) -> None:
    place = tmp_path / ("x" * 300 if kind == "a name that is too long" else "ledgers")
    if kind == "a file":
        place.touch()
    elif kind == "a loop of links":
        place.symlink_to(place)
    with watching(place) as sources:
        (observations, (health,)) = sources.look()
        assert observations == ()
        assert (health.source, health.success, health.status) == (str(place), False, "not_a_ledger")
        assert "or give the directory of the ledgers" in (health.error or "")
        with suppress(OSError):
            place.unlink()
            place.mkdir()
            assert sources.look() == ((), ())


def test_files_in_preparation_and_locks_are_no_ledgers(tmp_path: Path) -> None:
    for name in (".new-a.0-xyz", ".a.0.lock", "a.0.00000001.kvledger.gz", "notes.txt", ".hidden.kvledger"):
        (tmp_path / name).touch()

    assert scan(tmp_path) == {}


@pytest.mark.needs("tmpfs")
def test_a_recording_in_the_directory_is_no_engine_and_hides_none(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "hold", memory, "held", 0)
    (live,) = memory.glob("*.kvledger")
    record(live, memory / "r")
    shutil.copy(memory / "r", memory / "held.0.00000099.kvledger")
    shutil.copy(memory / "r", memory / "other.0.00000001.kvledger")

    with watching(memory) as sources:
        seen = by_key(sources.look())

    assert list(seen) == ["held:0"]
    assert seen["held:0"][0] == "idle"
    assert scan(memory)["held:0"].path == live
