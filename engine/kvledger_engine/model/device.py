"""The device: which one and which dtype a name means, and what its failures are to the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvledger_engine.errors import BadConfig, ComputeLost
from kvledger_engine.model.config import DTYPE_BYTES, FORMAT_OF_DTYPE, ModelConfig

AUTO = "auto"
DEVICES = (AUTO, "cpu", "cuda")
DTYPES = (AUTO, *DTYPE_BYTES)
KV_FORMATS = (AUTO, "fp32", "bf16", "int8", "fp8")
"""What a cache can be asked to be in; "auto" is the dtype of the weights, whichever that is."""
_STORED = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def resolve_device(name: str) -> torch.device:
    """The device a name means; "auto" is an accelerator where there is one. Raises `BadConfig`."""
    if name not in DEVICES:
        raise BadConfig(f"device={name!r}: use one of {', '.join(DEVICES)}")
    present = torch.cuda.is_available()
    if name == "cuda" and not present:
        raise BadConfig("device='cuda': torch sees no accelerator; use cpu, or install its driver and a CUDA build")
    return torch.device("cuda" if present and name != "cpu" else "cpu")


def resolve_dtype(name: str, config: ModelConfig, device: torch.device) -> str:
    """The dtype a name means for this model on this device, one of `DTYPE_BYTES`. Raises `BadConfig`."""
    if name not in DTYPES:
        raise BadConfig(f"dtype={name!r}: use one of {', '.join(DTYPES)}")
    return config.dtype_on(accelerator=device.type != "cpu") if name == AUTO else name


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of this name."""
    assert name in DTYPE_BYTES, name
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def resolve_kv_format(name: str, dtype: str) -> str:
    """The format a name means for weights of `dtype`, one of `kvledger.geometry.KV_FORMATS`. Raises `BadConfig`."""
    if name not in KV_FORMATS:
        raise BadConfig(f"kv_format={name!r}: use one of {', '.join(KV_FORMATS)}")
    return FORMAT_OF_DTYPE[dtype] if name == AUTO else name


def format_of(stored: torch.dtype) -> str:
    """The format whose cells are of this dtype."""
    return next(name for name, dtype in _STORED.items() if dtype == stored)


def stored_dtype(kv_format: str) -> torch.dtype:
    """torch's dtype of the cells of a format."""
    return _STORED[kv_format]


@contextmanager
def device_failures() -> Iterator[None]:
    """Turn torch's failures into the engine's: `MemoryError` for an allocation, `ComputeLost` for a broken device."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    except torch.AcceleratorError as error:
        if getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY:
            raise MemoryError(str(error)) from error
        raise ComputeLost(f"the accelerator failed: {error}: start the engine again") from error
    except RuntimeError as error:
        # The CPU's allocator has no error type of its own.
        if "DefaultCPUAllocator" in str(error):
            raise MemoryError(str(error)) from error
        raise
