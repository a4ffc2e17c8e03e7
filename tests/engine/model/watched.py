"""A runner that is watched: what no row may read is NaN before each step, and the logits of every sample are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch
from kvledger_engine.runner import ModelRunner


class WatchedRunner(ModelRunner):
    """`watch` names the ledger before the first step. `seen` is (serial, position) → the logits its token came from.

    Free blocks, unfilled ends and blocks that a copy is to fill become NaN for good; blocks of sequences that are not
    in the step, and cached ones, for the length of the step. What is swapped moves before all that: a block that is
    swapped out is free already.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, fill=float("nan"), **kwargs)
        self._ledger: Ledger | None = None
        self.seen: dict[tuple[int, int], Tensor] = {}
        self.poisoned_slots = 0

    def watch(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def logits(self, batch: Batch) -> Tensor:
        if batch.host_copies is not None:
            self._swap(batch.host_copies)
            batch = replace(batch, host_copies=None)
        self._poison(batch.copy_target)
        hidden = self._hide(batch)
        logits = super().logits(batch)
        for plane, blocks, content in hidden:
            plane[:, :, blocks] = content
        self._keep(batch, logits)
        return logits

    def _poison(self, also: Any) -> None:
        assert self._ledger is not None
        blocks = self._ledger.blocks
        filled = np.where(blocks.state == BlockState.FREE, 0, blocks.filled_tokens)
        filled[also] = 0
        unread = np.arange(self.store.keys.shape[3]) >= filled[:, None]
        self.poisoned_slots += int(unread.sum())
        for cells in (self.store.keys, self.store.values):
            cells.masked_fill_(torch.from_numpy(unread)[..., None], torch.nan)

    def _hide(self, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor]]:
        assert self._ledger is not None
        holding = np.flatnonzero(self._ledger.blocks.state != BlockState.FREE)
        named = np.concatenate([tables.blocks for tables in batch.tables] + [batch.copy_source])
        blocks = torch.from_numpy(np.setdiff1d(holding, named))
        hidden = [(cells, blocks, cells[:, :, blocks].clone()) for cells in (self.store.keys, self.store.values)]
        for cells, _, _ in hidden:
            cells[:, :, blocks] = torch.nan
        return hidden

    def _keep(self, batch: Batch, logits: Tensor) -> None:
        assert self._ledger is not None
        serials = self._ledger.slots.serial[batch.sample_slots].tolist()
        positions = (batch.starts + batch.counts)[batch.sample_entry].tolist()
        for key, row in zip(zip(serials, positions, strict=True), logits, strict=True):
            self.seen[key] = row.clone()
