"""ModelRunner: a batch through the model. Turns arrays into tensors and logits into tokens; decides nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kvledger.views import I32, I64
from kvledger_engine.batch import Batch, GroupTables, HostCopies, Scoring, ragged_positions
from kvledger_engine.errors import NonFiniteLogits, NotEnoughMemory
from kvledger_engine.hoststore import HostStore
from kvledger_engine.kveviction import Retention
from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.checkpoint import load_weights
from kvledger_engine.model.config import DTYPE_BYTES, ModelConfig
from kvledger_engine.model.device import (
    AUTO,
    device_failures,
    format_of,
    resolve_device,
    resolve_dtype,
    resolve_kv_format,
    stored_dtype,
    torch_dtype,
)
from kvledger_engine.model.embedded import EMBEDDED_MODELS
from kvledger_engine.model.forgetful import forgetful
from kvledger_engine.model.huggingface import model_config
from kvledger_engine.model.linear import LEAST_ELEMENTS
from kvledger_engine.model.llama import GroupStep, Llama
from kvledger_engine.model.stopwatch import Stopwatch
from kvledger_engine.model.weights import Weights, seeded_weights, weight_shapes
from kvledger_engine.sampling import draw, score


class ModelRunner:
    """A model with its weights and its cache: the engine's `Compute`. dtype and device are those of the weights.

    `kv_dtype` is that of the cache's cells; None = the weights'. `swap_blocks` of them lie in host memory besides.
    Raises `NotEnoughMemory` if they do not fit.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        capacity_blocks: int,
        block_size_tokens: int,
        kv_dtype: torch.dtype | None = None,
        fill: float = 0.0,
        swap_blocks: int = 0,
    ) -> None:
        self.config, self.weights = config, weights
        self.device = weights.norm.device
        self.store = KvStore(
            config,
            capacity_blocks=capacity_blocks,
            block_size_tokens=block_size_tokens,
            dtype=kv_dtype or weights.norm.dtype,
            device=self.device,
            fill=fill,
        )
        self.host = HostStore(self.store, swap_blocks)
        self.kv_format = format_of(self.store.keys.dtype)
        """What the cache is kept in, one of `kvledger.geometry.KV_FORMATS`."""
        self._block_size = block_size_tokens
        self._copying = Stopwatch(self.device)
        self._llama = Llama(config, weights, self.store)

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`: copies, then writes, then reads.

        Raises `MemoryError` for a failed allocation, `NonFiniteLogits`, and `ComputeLost` for a broken device.
        """
        with device_failures(), torch.inference_mode():
            logits = self.logits(batch)
            tokens = self._draw(batch, logits) if len(batch.sample_entry) else np.zeros(0, np.int32)
            if len(batch.copy_source):
                batch.copy_time.seconds = self._copying.seconds()
            return tokens

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """Fill the cache for a batch; the scores of its samples, [m, vocab_size]."""
        assert batch.block_size_tokens == self._block_size
        if batch.host_copies is not None:
            self._swap(batch.host_copies)
        if len(batch.copy_source):
            self._copying.start()
            self.store.copy(self._int64(batch.copy_source), self._int64(batch.copy_target))
            self._copying.stop()
        positions = ragged_positions(batch.starts, batch.counts)
        hidden = self._llama.forward(
            self._int64(batch.tokens),
            self._int64(positions),
            [
                GroupStep(self._int64(self._slots(batch, tables, positions)), self.store.backend.plan(batch, group))
                for group, tables in enumerate(batch.tables)
            ],
        )
        last = (np.cumsum(batch.counts) - 1)[batch.sample_entry]
        return self._llama.logits(hidden.index_select(0, self._int64(last)))

    def _swap(self, copies: HostCopies) -> None:
        """Out before in: a block that is swapped out may be the target of one that comes back."""
        self.host.save(self._int64(copies.out_sources), torch.from_numpy(copies.out_hosts.astype(np.int64)))
        self.host.restore(torch.from_numpy(copies.in_hosts.astype(np.int64)), self._int64(copies.in_targets))

    def _slots(self, batch: Batch, tables: GroupTables, positions: I64) -> I64:
        """The slot of each token, through its row's block table in one group."""
        rows = np.repeat(np.arange(len(batch.slots)), batch.counts)
        blocks, offsets = np.divmod(positions, self._block_size)
        bases = tables.offsets[:-1] - tables.skipped
        slots: I64 = tables.blocks[bases[rows] + blocks].astype(np.int64) * self._block_size + offsets
        return slots

    def _draw(self, batch: Batch, logits: Tensor) -> I32:
        drawn = draw(
            logits,
            batch.sample_temperature,
            batch.sample_seed,
            (batch.starts + batch.counts)[batch.sample_entry].astype(np.int64),
            batch.sample_top_p,
        )
        # A sum in float64 is finite where all of its numbers are, and takes a tenth of the time of looking at each.
        finite = logits.sum(dim=-1, dtype=torch.float64).isfinite()
        # One transfer for both: a device is waited for once a step.
        answer: I64 = torch.stack((drawn, finite.long())).cpu().numpy()
        unsound = answer[1] == 0
        if unsound.any():
            raise NonFiniteLogits(batch.sample_slots[unsound].tolist())
        tokens: I32 = answer[0].astype(np.int32)
        if batch.scores is not None:
            self._score(batch.scores, logits, drawn)
        return tokens

    def _score(self, scores: Scoring, logits: Tensor, drawn: Tensor) -> None:
        rows = self._int64(scores.samples)
        tops = scores.top_tokens.shape[1]
        of_drawn, tokens, values = score(logits.index_select(0, rows), drawn.index_select(0, rows), tops)
        scores.logprobs[:] = of_drawn.cpu().numpy()
        scores.top_tokens[:, : tokens.shape[1]] = tokens.cpu().numpy()
        scores.top_logprobs[:, : tokens.shape[1]] = values.cpu().numpy()

    def _int64(self, array: I32 | I64) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


def build_runner(
    source: str,
    *,
    capacity_blocks: int,
    block_size_tokens: int,
    dtype: str = AUTO,
    device: str = AUTO,
    kv_format: str = AUTO,
    swap_blocks: int = 0,
    seed: int = 0,
    retention: Retention | None = None,
) -> ModelRunner:
    """A runner for `source`: an embedded model, whose weights come from `seed`, or the directory of a checkpoint.

    `dtype` is one of `device.DTYPES`, `device` one of `device.DEVICES`, `kv_format` one of `device.KV_FORMATS`;
    `retention` is what its layers see beyond what they were made for; None = that. Raises
    `BadCheckpoint`, `BadConfig`, or `NotEnoughMemory` for weights or a cache that the device has no room for.
    """
    config, where = model_config(source), resolve_device(device)
    if retention is not None:
        config = forgetful(config, retention, block_size_tokens)
    name = resolve_dtype(dtype, config, where)
    kind, kept = torch_dtype(name), stored_dtype(resolve_kv_format(kv_format, name))
    try:
        with device_failures():
            if max(torch.Size(shape).numel() for shape in weight_shapes(config).values()) < LEAST_ELEMENTS:
                # Tensors too small to share: threads that wait for each other lose a busy machine's cores.
                torch.set_num_threads(1)
            if source in EMBEDDED_MODELS:
                weights = seeded_weights(config, seed=seed, dtype=kind, device=where)
            else:
                weights = load_weights(Path(source), config, dtype=kind, device=where)
    except MemoryError as error:
        elements = sum(torch.Size(shape).numel() for shape in weight_shapes(config).values())
        remedy = "use a smaller dtype, or a larger device"
        raise NotEnoughMemory("the weights", elements * DTYPE_BYTES[name], remedy) from error
    return ModelRunner(
        config,
        weights,
        capacity_blocks=capacity_blocks,
        block_size_tokens=block_size_tokens,
        kv_dtype=kept,
        swap_blocks=swap_blocks,
    )
