"""References that no table holds: those of a real KV connector, and the ends of copies on write. None is a leak."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from kvledger.invariants import counts, suspects
from kvledger.words import PinKind
from tests.vllm.mirrored import Mirrored, mirrored
from tests.vllm.truth import differences, ledger_counts, truth_of

Pinned = Counter[tuple[int, int]]
both = pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])


def pinned(mirror: Mirrored) -> Pinned:
    """(kind, vLLM's block) of every pin in the ledger."""
    pins = mirror.reader.sample().pins
    return Counter(zip(pins.kind.tolist(), (pins.block + 1).tolist(), strict=True))


def check(mirror: Mirrored, what: str, pins: Pinned) -> None:
    """Everything as vLLM's objects say, and every reference explained by a table or a pin."""
    wrong = differences(truth_of(mirror.scheduler), ledger_counts(mirror.reader))
    wrong.pop("pinned", None)  # of which vLLM's objects tell more, below
    assert wrong == {}, what
    assert pinned(mirror) == pins, what
    audit = mirror.reader.audit()
    assert (suspects(audit), counts(mirror.reader.sample(), audit), [*audit.damage]) == ([], {}, []), what


def deferred_frees(scheduler: Any, copies: Collection[Any] = ()) -> Pinned:
    """What vLLM has not given back yet, since a step that may use it is not over; `copies` are the ends of copies."""
    kinds = {id(entry): PinKind.COPY_ON_WRITE for entry in copies}
    return Counter(
        (int(kinds.get(id(entry), PinKind.DEFERRED_FREE)), block.block_id)
        for entry in scheduler.deferred_frees
        for block in entry[1]
        if not block.is_null
    )


class Offloading:
    """vLLM's own connector that keeps blocks in host memory, whose workers are as slow as is drawn."""

    def __init__(self, mirror: Mirrored, seed: int) -> None:
        self.mirror, self._drawn = mirror, random.Random(seed)
        self._manager = mirror.scheduler.connector.scheduler_manager
        self._stores: list[int] = []
        self._loads: list[str] = []
        self.stored = self.loaded = 0

    def truth(self) -> Pinned:
        """What the connector's own records say it holds."""
        manager = self._manager
        transfers = [*manager._store_event_to_blocks.values(), *manager._abandoned_store_event_to_blocks.values()]
        transfers += manager._pending_finished_stores
        loads = [*manager._reqs_to_load.values(), *manager._abandoned_reqs_to_load.values()]
        transfers += [load.transfer_meta for load in loads if load.transfer_meta is not None]
        held = Counter((int(PinKind.CONNECTOR), block) for transfer in transfers for block in transfer.gpu_block_ids)
        return held + deferred_frees(self.mirror.scheduler)

    def schedule(self) -> None:
        """The first half of a step; what it gives the workers to do."""
        self.mirror.bare.schedule()
        work = self.mirror.bare._in_flight[-1][0].kv_connector_metadata
        self._stores += [work.store_event] if work.store_event >= 0 else []
        self._loads += work.load_event_to_reqs.get(work.load_event, [])

    def update(self) -> None:
        """The second half; workers may have done some of it."""
        done = self._stores[: self._drawn.choice((0, 0, 1, 3))]
        there = self._loads[: self._drawn.choice((0, 0, 1))]
        del self._stores[: len(done)], self._loads[: len(there)]
        self.stored, self.loaded = self.stored + len(done), self.loaded + len(there)
        if done or there:
            self.mirror.bare.transferred = KVConnectorOutput(
                finished_recving=set(there),
                kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(dict.fromkeys(done, 1)),
            )
        self.mirror.bare.update()


@both
def test_what_a_connector_holds_by_references_of_its_own_is_pinned_for_as_long_as_it_does(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    transfer = KVTransferConfig(
        kv_connector="SimpleCPUOffloadConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 4 << 20},
    )
    drawn = random.Random(61)
    options = {"asynchronous": asynchronous, "kv_transfer_config": transfer, "max_num_seqs": 6}
    with mirrored(tiny_model, ledger_directory, blocks=65, seed=61, **options) as mirror:
        offloading = Offloading(mirror, 61)
        prefixes = [[drawn.randrange(3, 512) for _ in range(160)] for _ in range(6)]
        most = 0
        for number in range(400):
            if drawn.random() < 0.3 and len(mirror.scheduler.requests) < 12:
                prompt = drawn.choice(prefixes)[: drawn.randrange(40, 160)] + [3 + number % 500] * 20
                mirror.bare.add(f"r{number}", prompt, max_tokens=drawn.randrange(1, 60))
            elif drawn.random() < 0.05 and mirror.scheduler.requests:
                mirror.bare.abort(drawn.choice(list(mirror.scheduler.requests)))
            check(mirror, f"{number}: before", offloading.truth())
            offloading.schedule()
            check(mirror, f"{number}: schedule", offloading.truth())
            if mirror.bare.full():
                offloading.update()
                check(mirror, f"{number}: update", offloading.truth())
            most = max(most, sum(offloading.truth().values()))
        assert min(offloading.stored, offloading.loaded, most) > 5, "too tame"
        assert mirror.corrections() == 0


@both
def test_both_ends_of_a_copy_on_write_are_pinned_until_the_step_that_copies_is_over(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    """A prefix that ends within a block of a hybrid model's states; frees deferred as with a connector."""
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=62, asynchronous=asynchronous, states=64) as mirror:
        scheduler, copies = mirror.scheduler, list[Any]()
        scheduler.defer_block_free = True
        retaining = scheduler._free_cow_retained_blocks

        def noting(blocks: Any, fence: int) -> None:
            before = len(scheduler.deferred_frees)
            retaining(blocks, fence)
            copies.extend(list(scheduler.deferred_frees)[before:])

        scheduler._free_cow_retained_blocks = noting

        def truth() -> Pinned:
            return deferred_frees(scheduler, copies)

        beginning = [5 + number % 300 for number in range(96)]
        seen = Counter[int]()
        for number in range(60):
            if number % 6 == 0:
                mirror.bare.add(f"r{number}", beginning + [7 + number] * (20 + number), max_tokens=10)
            mirror.bare.schedule()
            check(mirror, f"{number}: schedule", truth())
            seen.update(kind for kind, _ in truth())
            if mirror.bare.full():
                mirror.bare.update()
                check(mirror, f"{number}: update", truth())
        assert seen[int(PinKind.COPY_ON_WRITE)] >= 4
        assert len(copies) >= 2
        mirror.bare.drain()
        mirror.bare.abort(*scheduler.requests)
        check(mirror, "all aborted", truth())
        assert mirror.corrections() == 0
