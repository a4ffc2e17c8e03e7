"""The checkpoints that engines are compared with: Llamas with seeded float32 weights, as all of them load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.vllm.model import VOCABULARY, save_llama, save_tiny_llama


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What it is called in the table, and what writes it into a directory."""

    name: str
    save: Callable[[Path], None]
    vocabulary: int = VOCABULARY


def _save_middle(directory: Path) -> None:
    save_llama(
        directory,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=16,
        num_attention_heads=12,
        num_key_value_heads=4,
    )


TINY = Checkpoint(name="tiny Llama", save=save_tiny_llama)
MIDDLE = Checkpoint(name="101 M Llama", save=_save_middle)
