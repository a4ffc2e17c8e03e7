"""What an engine computes with: the cell model, the embedded model, or a checkpoint. Chooses; computes nothing itself.

Only here does the control plane meet the model, and torch is imported only where one is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from kvledger_engine.batch import Compute
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.model.config import DTYPE_BYTES
from kvledger_engine.model.embedded import EMBEDDED_MODELS, EMBEDDED_NAME
from kvledger_engine.model.huggingface import model_config

CELL_MODEL = "cell"
AUTO = "auto"
DTYPES = (AUTO, *DTYPE_BYTES)
DEVICES = (AUTO, "cpu", "cuda")
KV_FORMATS = (AUTO, "fp32", "bf16", "int8", "fp8")
"""Those of `model.device`, which imports torch."""
_TOKENIZER_FILE = "tokenizer.json"


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which model: `source` is "cell", an embedded one or a checkpoint's directory. `device` is one of `DEVICES`.

    `kv_format` is one of `KV_FORMATS`: what its cache is kept in.
    """

    source: str = EMBEDDED_NAME
    dtype: str = AUTO
    device: str = AUTO
    kv_format: str = AUTO

    @property
    def name(self) -> str:
        """What the model is called unless it is given another name: the source, or the directory's own name."""
        return self.source if self.source in (CELL_MODEL, *EMBEDDED_MODELS) else Path(self.source).resolve().name


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """An opened compute, the configuration with what the model decides, and what the HTTP process must know of it."""

    config: EngineConfig
    compute: Compute
    tokenizer_path: str = ""
    eos_token_ids: tuple[int, ...] = ()
    has_scores: bool = True
    """Whether tokens are drawn from a distribution."""


def longest_context_tokens(model: ModelOptions) -> int | None:
    """Positions the model was made for; None = it has no limit. Checks that it can be opened here, and opens nothing.

    Raises `BadCheckpoint` for a directory that holds no model we compute, `BadConfig` where torch is missing, and for
    a format of keys and values where there are none.
    """
    if model.source == CELL_MODEL:
        if model.kv_format != AUTO:
            raise BadConfig(
                f"kv_format={model.kv_format!r}: the model {CELL_MODEL!r} keeps no keys and values; use {AUTO!r}, or "
                f"another model, such as {EMBEDDED_NAME!r}"
            )
        return None
    if find_spec("torch") is None:
        raise BadConfig(
            f"model={model.source!r} needs torch: pip install 'kvledger[engine]', or use the model {CELL_MODEL!r}"
        )
    return model_config(model.source).max_position_embeddings


def open_compute(config: EngineConfig, model: ModelOptions) -> Computing:
    """Make what computes `config`'s engine. Raises `EngineError` for a model that cannot be had."""
    if model.source == CELL_MODEL:
        if config.retention.evicts:
            raise BadConfig(
                f"kv_eviction={config.kv_eviction!r}: every token of the model {CELL_MODEL!r} reads all cells before "
                f"it; use another model, such as {EMBEDDED_NAME!r}"
            )
        cells = CellModel(
            capacity_blocks=config.capacity_blocks,
            block_size_tokens=config.block_size_tokens,
            vocab_size=config.vocab_size,
            swap_blocks=config.swap_blocks,
        )
        return Computing(config=replace(config, weights_bytes=0), compute=cells, has_scores=False)
    return _open_model(config, model)


def _open_model(config: EngineConfig, model: ModelOptions) -> Computing:
    from kvledger_engine.runner import build_runner  # torch takes seconds to import

    runner = build_runner(
        model.source,
        capacity_blocks=config.capacity_blocks,
        block_size_tokens=config.block_size_tokens,
        dtype=model.dtype,
        device=model.device,
        kv_format=model.kv_format,
        swap_blocks=config.swap_blocks,
        seed=config.seed,
        retention=config.retention,
    )
    shape, slots = runner.config, config.capacity_blocks * config.block_size_tokens
    return Computing(
        config=replace(
            config,
            vocab_size=shape.vocab_size,
            bytes_per_token=runner.store.nbytes // slots,
            groups=shape.ledger_groups(runner.kv_format, config.block_size_tokens),
            kv_format=runner.kv_format,
            weights_bytes=runner.weights.nbytes,
        ),
        compute=runner,
        tokenizer_path=_tokenizer_path(model.source),
        eos_token_ids=shape.eos_token_ids,
    )


def _tokenizer_path(source: str) -> str:
    """The checkpoint's tokenizer; empty for the embedded models, whose tokens are bytes."""
    if source in EMBEDDED_MODELS:
        return ""
    path = Path(source) / _TOKENIZER_FILE
    if not path.is_file():
        raise BadConfig(f"{path} is missing: text cannot become tokens; copy it from where the checkpoint came from")
    return str(path.resolve())
