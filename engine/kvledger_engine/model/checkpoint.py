"""A checkpoint's safetensors files as Weights: every name and shape checked before anything is read."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.errors import BadCheckpoint
from kvledger_engine.model.huggingface import read_json
from kvledger_engine.model.weights import Weights, assemble, weight_shapes

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_FLOATS = ("F64", "F32", "BF16", "F16")
# Buffers that old versions of transformers saved: computed from the configuration here.
_COMPUTED = ".rotary_emb.inv_freq"


def load_weights(directory: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights in a checkpoint's directory, as `dtype` on `device`.

    Raises `BadCheckpoint` for a missing, unexpected or misshapen tensor, and for files that cannot be read.
    """
    shapes = weight_shapes(config)
    tensors: dict[str, Tensor] = {}
    for path, claimed in _files(directory).items():
        try:
            tensors |= _read(path, claimed, shapes, dtype=dtype, device=device)
        except (OSError, SafetensorError) as error:
            raise BadCheckpoint(f"{path}: {error}: fetch the file again") from error
    missing = sorted(shapes.keys() - tensors.keys())
    if missing:
        raise BadCheckpoint(
            f"{directory}: {_some(missing)} missing: config.json and the safetensors files must be of one model"
        )
    return assemble(config, tensors)


def _some(names: list[str]) -> str:
    """A few of the names, and how many there are."""
    return f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''} ({len(names)} tensors)"


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """The files of a checkpoint, each with the tensors the index expects in it; None = no index, all of them."""
    index = directory / _INDEX
    if not index.exists():
        single = directory / _SINGLE
        if not single.exists():
            raise BadCheckpoint(f"{directory}: neither {_SINGLE} nor {_INDEX}: give a checkpoint in safetensors")
        return {single: None}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadCheckpoint(f"{index}: weight_map={weight_map!r}: it must map tensor names to files")
    files: dict[Path, set[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise BadCheckpoint(f"{index}: {name} in {file!r}: it must be a .safetensors file beside the index")
        claimed = files.setdefault(directory / file, set())
        assert claimed is not None
        claimed.add(name)
    return files


def _read(
    path: Path,
    claimed: set[str] | None,
    shapes: dict[str, tuple[int, ...]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """The tensors of one file that the model has, once all its names, shapes and kinds are right."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        names = set(file.keys())
        if claimed is not None and names != claimed:
            raise BadCheckpoint(
                f"{path}: {_some(sorted(names ^ claimed))} in the index or the file, but not in both: "
                "fetch the checkpoint again"
            )
        wanted = [name for name in sorted(names) if not _is_ignored(name, shapes)]
        for name in wanted:
            _check(path, name, file.get_slice(name), shapes)
        return {name: file.get_tensor(name).to(dtype) for name in wanted}


def _is_ignored(name: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Whether a tensor says nothing that the model does not have already: a tied head, a computed buffer."""
    return name.endswith(_COMPUTED) or (name == "lm_head.weight" and name not in shapes)


def _check(path: Path, name: str, stored: object, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise unless the model has a tensor of this name and shape, and it is stored as floats."""
    if name not in shapes:
        raise BadCheckpoint(f"{path}: {name} is not a tensor of the model in config.json")
    shape, kind = tuple(stored.get_shape()), stored.get_dtype()  # type: ignore[attr-defined]
    if shape != shapes[name]:
        raise BadCheckpoint(f"{path}: {name} has shape {shape}: config.json makes it {shapes[name]}")
    if kind not in _FLOATS:
        raise BadCheckpoint(f"{path}: {name} is stored as {kind}: use a checkpoint that is not quantised")
