"""A tiny Llama with seeded random weights, saved as a checkpoint that vLLM loads. `python -m tests.vllm.model DIR`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SEED = 20260101
VOCABULARY = 512
LONGEST_TOKENS = 16384
"""Its positions. Servers are started with fewer, but for prompts that are to take long on any machine."""


def save_tiny_llama(directory: Path) -> None:
    """Write a Llama of 2 layers into `directory`."""
    save_llama(
        directory,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )


def save_llama(directory: Path, **sizes: Any) -> None:
    """Write config, weights and a word-level tokenizer (words `t0` to `t511`) into `directory`.

    `sizes` have the names they have in the configuration.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LONGEST_TOKENS,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
        dtype="float32",
        **sizes,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    words = models.WordLevel({f"t{number}": number for number in range(VOCABULARY)}, unk_token="t0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, unk_token="t0", bos_token="t1", eos_token="t2").save_pretrained(directory)


if __name__ == "__main__":
    save_tiny_llama(Path(sys.argv[1]))
