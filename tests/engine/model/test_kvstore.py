"""The store of keys and values: its size is the ledger's arithmetic, and it copies and writes what it is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvledger.geometry import KV_FORMATS
from kvledger_engine.attention.scaling import restore
from kvledger_engine.errors import NotEnoughMemory
from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.config import DTYPE_BYTES
from kvledger_engine.model.device import stored_dtype, torch_dtype
from kvledger_engine.model.embedded import EMBEDDED, EMBEDDED_MODELS


def _store(**options: Any) -> KvStore:
    sizes: dict[str, Any] = {
        "capacity_blocks": 6,
        "block_size_tokens": 4,
        "dtype": torch.float32,
        "device": torch.device("cpu"),
    }
    return KvStore(options.pop("config", EMBEDDED), **(sizes | options))


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_its_bytes_are_the_blocks_by_the_formula(dtype: str) -> None:
    store = _store(capacity_blocks=7, block_size_tokens=16, dtype=torch_dtype(dtype))
    assert store.nbytes == 7 * 16 * EMBEDDED.bytes_per_token(dtype)
    assert EMBEDDED.bytes_per_token(dtype) == 2 * 2 * 2 * 32 * DTYPE_BYTES[dtype]


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("model", EMBEDDED_MODELS)
def test_in_every_format_its_bytes_are_those_on_the_ledger_scales_included(model: str, kv_format: str) -> None:
    config = EMBEDDED_MODELS[model]
    store = _store(config=config, capacity_blocks=7, block_size_tokens=16, dtype=stored_dtype(kv_format))
    groups = config.ledger_groups(kv_format, 16)
    assert store.nbytes == sum(plane.nbytes for plane in store.planes) == 7 * groups[0].block_bytes
    assert sum(group.bytes_per_token for group in groups) == config.bytes_per_token(kv_format)
    # Every group's layers fill a block: no padding in either model.
    assert {group.block_bytes for group in groups} == {16 * groups[0].bytes_per_token}


def test_layers_of_different_groups_share_rows_and_differ_by_block() -> None:
    store = _store(config=EMBEDDED_MODELS["embedded-windows"])
    assert store.row_of == [0, 0, 1, 1]
    assert store.keys.shape[0] == 2


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
def test_quantised_blocks_travel_with_their_scales(kv_format: str) -> None:
    store = _store(dtype=stored_dtype(kv_format), fill=float("nan"))
    key, value = torch.randn(2, 4, 2, 32)
    store.write(1, torch.arange(8, 12), key, value)
    store.copy(torch.tensor([2]), torch.tensor([5]))
    cells = store.cells_of(1)
    assert cells.key_scales is not None
    restored = restore(cells.keys[:, 5], cells.key_scales[:, 5], torch.float32)
    assert float((restored - key.transpose(0, 1)).abs().max()) < 0.2
    assert torch.equal(restored, restore(cells.keys[:, 2], cells.key_scales[:, 2], torch.float32))
    assert int(cells.key_scales.isfinite().sum()) == 2 * 4 * 2


def test_a_copy_brings_whole_blocks_of_all_layers_and_touches_nothing_else() -> None:
    store = _store()
    for cells in (store.keys, store.values):
        cells.copy_(torch.randn(cells.shape))
    before = store.keys.clone(), store.values.clone()
    store.copy(torch.tensor([0, 4]), torch.tensor([5, 1]))
    for cells, old in zip((store.keys, store.values), before, strict=True):
        assert torch.equal(cells[:, :, [5, 1]], old[:, :, [0, 4]])
        assert torch.equal(cells[:, :, [0, 2, 3, 4]], old[:, :, [0, 2, 3, 4]])


def test_a_write_lands_in_its_slots_of_its_layer_alone() -> None:
    store = _store(fill=float("nan"))
    key, value = torch.randn(2, 3, 2, 32)
    store.write(1, torch.tensor([9, 2, 23]), key, value)
    assert torch.equal(store.keys[1, :, 2, 1], key[0])
    assert torch.equal(store.values[1, :, 0, 2], value[1])
    assert torch.equal(store.cells_of(1).values.flatten(1, 2)[:, 23], value[2])
    assert int(store.keys.isfinite().sum()) == int(store.values.isfinite().sum()) == 3 * 2 * 32


def test_a_store_that_does_not_fit_says_how_much_it_wanted_and_what_to_do() -> None:
    blocks = 1 << 38
    with pytest.raises(NotEnoughMemory, match="use fewer blocks") as caught:
        _store(capacity_blocks=blocks)
    wanted = blocks * 4 * EMBEDDED.bytes_per_token("float32")
    assert caught.value.wanted_bytes == wanted
    assert f"{wanted:,} bytes" in str(caught.value)
    assert isinstance(caught.value.__cause__, MemoryError)
