"""A KV connector for a scheduler without workers: loads, and sends of who finished, take until a test ends them."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

FETCHED, SENT = "fetched", "sent"
"""Beginnings of the ids of requests whose KV comes from elsewhere, and of those whose KV goes elsewhere at the end."""


class Nothing(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not there where types are checked
    """What workers would be told."""


class SlowConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's side alone: it holds nothing of its own, and says which requests keep their blocks."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """All of a fetched request's prompt but its last token, later."""
        if not request.request_id.startswith(FETCHED):
            return 0, False
        size = self._vllm_config.cache_config.block_size
        there = (request.num_tokens - 1) // size * size - num_computed_tokens
        return (there, True) if there > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing to do."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Nothing to say."""
        return Nothing()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether its blocks stay until they were sent."""
        return request.request_id.startswith(SENT), None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """A worker's."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A worker's."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """A worker's."""

    def wait_for_save(self) -> None:
        """A worker's."""
