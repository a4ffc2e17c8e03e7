"""KV connectors of a whole server whose other side is slow or gone: a host memory that takes seconds, a peer that never
answers. `transfer` makes a server use one.
"""

from __future__ import annotations

import json
import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from tests.vllm.connector import SlowConnector

STORE_SECONDS = 3.0


def transfer(name: str) -> tuple[str, ...]:
    """The server's arguments for one of this module's connectors."""
    chosen = {
        "kv_connector": name,
        "kv_connector_module_path": __name__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 16 << 20},
    }
    return "--kv-transfer-config", json.dumps(chosen)


class SlowHostMemory(SimpleCPUOffloadConnector):  # type: ignore[misc]  # vLLM is not there where types are checked
    """vLLM's own scheduler side of a copy of every full block in host memory; the copy takes three seconds."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if role == KVConnectorRole.SCHEDULER:
            super().__init__(vllm_config, role, kv_cache_config)
            return
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        self.scheduler_manager, self.worker_handler = None, _SlowWorker()


class _SlowWorker:
    """Copies nothing, and says so of each store once its time has passed; whatever is loaded is there at once."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._loaded: set[str] = set()

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Nothing to do."""

    def bind_connector_metadata(self, work: Any) -> None:
        """What a step gives to do."""
        if work.store_event >= 0:
            self._since[work.store_event] = time.monotonic()
        self._loaded.update(work.load_event_to_reqs.get(work.load_event, ()))

    def build_connector_worker_meta(self) -> SimpleCPUOffloadWorkerMetadata | None:
        """The stores that are done."""
        done = [event for event, since in self._since.items() if time.monotonic() - since > STORE_SECONDS]
        for event in done:
            del self._since[event]
        return SimpleCPUOffloadWorkerMetadata(dict.fromkeys(done, 1)) if done else None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Nobody waits to be sent; those that were loaded."""
        loaded, self._loaded = self._loaded, set()
        return None, loaded or None

    def clear_connector_metadata(self) -> None:
        """Nothing to do."""

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Nothing to do."""

    def start_load_kv(self) -> None:
        """Nothing to do."""

    def wait_for_save(self) -> None:
        """Nothing to do."""


class SilentPeer(SlowConnector):
    """Every request's prompt is to come from a peer that never sends it."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """All of the prompt but its last token, later."""
        size = self._vllm_config.cache_config.block_size
        there = (request.num_tokens - 1) // size * size - num_computed_tokens
        return (there, True) if there > 0 else (0, False)
