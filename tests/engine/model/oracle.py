"""The oracle: `transformers` with the same weights, in float64. Tiny models, made here; nothing is fetched."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

VOCABULARY = 96
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": None,
    "bos_token_id": None,
    "dtype": "float64",
}
_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


@contextmanager
def _quietly() -> Iterator[None]:
    """`transformers` and what it imports warn of their own futures."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _module(model_type: str) -> Any:
    with _quietly():
        return importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


def _whole_norm(self: Any, hidden: Tensor) -> Tensor:
    """RMSNorm in the dtype it is given; that of `transformers` rounds to float32 on its way."""
    normed: Tensor = self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return normed


class Oracle:
    """A model of `transformers` with random weights in float64. `directory` holds its checkpoint once it is saved."""

    def __init__(self, model_type: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        module, name = _module(model_type), _CLASSES[model_type]
        monkeypatch.setattr(getattr(module, f"{name}RMSNorm"), "forward", _whole_norm)
        with _quietly():
            config_class = getattr(importlib.import_module("transformers"), f"{name}Config")
            self.config = config_class(**(TINY | options), attn_implementation="sdpa")
            self.model = getattr(module, f"{name}ForCausalLM")(self.config).to(torch.float64).eval()
        self._randomise()

    def _randomise(self) -> None:
        """Weights under which activations keep their size and no bias or norm is without effect."""
        generator = torch.Generator().manual_seed(7)
        for name, weight in self.model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.dim() == 1:
                weight.data = (0.3 if name.endswith("bias") else 0.2) * noise + (0 if name.endswith("bias") else 1)
            else:
                weight.data = noise * (2.0 / weight.shape[1] ** 0.5)

    def save(self, directory: Path, **more: Any) -> Path:
        """Save the checkpoint as users get it."""
        with _quietly():
            self.model.save_pretrained(directory, **more)
        return directory

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Scores after each token, float64[t, vocab_size], in one pass without a cache."""
        with torch.inference_mode():
            scores: Tensor = self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return scores
