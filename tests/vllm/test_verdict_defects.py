"""The verdict on a real vLLM that something else spoils: a slow host memory, a silent peer, a free that is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.children import memory_directory
from tests.verdict.load import Stream
from tests.vllm.conductor import ROOT, Conductor
from tests.vllm.debug_hook import FREE
from tests.vllm.defects import LOST_DECREF, SKIPPED_FREE
from tests.vllm.server import VllmServer, vllm_server
from tests.vllm.slow_connectors import transfer
from tests.vllm.test_verdict import LIMITS, said

LEAK_AFTER_SECONDS = 2.0
OURS = {"PYTHONPATH": f"{ROOT / 'engine'}:{ROOT / 'agent'}:{ROOT}"}


@contextmanager
def serving(
    model: Path, log: Path, *arguments: str, environment: Mapping[str, str] = OURS, blocks: int = 65
) -> Iterator[VllmServer]:
    """A server of 64 blocks of 32 tokens unless told otherwise, with slots for all."""
    with (
        memory_directory() as directory,
        vllm_server(
            model, directory, log, blocks=blocks, arguments=(*LIMITS, "64", *arguments), environment=environment
        ) as server,
    ):
        yield server


def test_blocks_that_a_slow_host_memory_keeps_are_retained_and_no_leak(tiny_model: Path, tmp_path: Path) -> None:
    """vLLM's own connector holds every full block for the three seconds that its copy takes."""
    with serving(tiny_model, tmp_path / "log", *transfer("SlowHostMemory")) as server:
        found = said(server, [Stream(clients=24, prompt=200, tokens=20, tenant="")], "retained_prefixes")

    assert found.ends_with("retained_prefixes"), found
    assert not {"leak", "many_requests"} & set(found.reasons), found


def test_requests_whose_keys_a_peer_never_sends_are_a_stall(tiny_model: Path, tmp_path: Path) -> None:
    """Steps go on, the pool has room, and nobody gets a token."""
    with serving(tiny_model, tmp_path / "log", *transfer("SilentPeer")) as server:
        found = said(server, [Stream(clients=6, prompt=200, tokens=20, tenant="")], "no_progress")

    assert found.ends_with("no_progress"), found
    assert not {"no_heartbeat", "many_requests"} & set(found.reasons), found


def test_a_lost_free_and_a_lost_decrement_are_a_leak_and_nothing_is_one_before(
    tiny_model: Path, tmp_path: Path
) -> None:
    conductor = Conductor()
    streams = [
        Stream(clients=6, prompt=100, tokens=400, cancel_after=0.5, tenant=""),
        Stream(clients=6, prompt=200, prefix=128, tokens=30, tenant=""),
    ]
    try:
        with serving(tiny_model, tmp_path / "log", environment=conductor.environment, blocks=513) as server:
            spoiling = threading.Timer(LEAK_AFTER_SECONDS, spoil, (conductor,))
            spoiling.start()
            found = said(server, streams, "leak")
            spoiling.join()
    finally:
        conductor.close()

    assert found.ends_with("leak"), found
    assert found.reasons[0] != "leak", found
    assert found.reasons == sorted(found.reasons, key=lambda reason: reason == "leak"), found


def spoil(conductor: Conductor) -> None:
    """One of each defect, each at the next free that it fits; then the engine is free."""
    conductor.tell(hold=True)
    conductor.held()
    for kind in (SKIPPED_FREE, LOST_DECREF):
        conductor.tell(inject=kind, seed=0, go=FREE // 10)
        while not conductor.held()["done"]:
            conductor.tell(go=FREE // 10)
    conductor.tell(go=FREE)
