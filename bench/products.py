"""Windows of nothing but matrix products: `python -m bench.products CHECKPOINT LOAD` for `asked`.

The products of a load's prompts and decode steps, each with the weights of its layer, as fast as torch does them here:
by MKL and by oneDNN, on one thread and on all, whichever is the fastest. No engine can be faster than that.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from bench.asked import answering
from bench.closed import Closed
from kvledger_engine.model.checkpoint import load_weights
from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.huggingface import model_config
from kvledger_engine.model.linear import linear

DECODES = 6
_CPU = torch.device("cpu")


class Products:
    """The products of one model under a load."""

    def __init__(self, checkpoint: str, load: Closed) -> None:
        self._load = load
        self._config = model_config(checkpoint)
        weights = load_weights(Path(checkpoint), self._config, dtype=torch.float32, device=_CPU)
        layers = [(layer.qkv, layer.output, layer.gate_up, layer.down) for layer in weights.layers]
        packed = [matrix for layer in layers for matrix in layer] + [weights.head]
        plain = [matrix.to_dense() if matrix.is_mkldnn else matrix for matrix in packed]
        threads = torch.get_num_threads()
        self._ways = [(count, matrices) for count in {1, threads} for matrices in (packed, plain)]

    @torch.inference_mode()
    def window(self, seed: int) -> float:
        """Output tokens a second, were there nothing else to do."""
        return max(self._rate(threads, matrices) for threads, matrices in self._ways)

    def _rate(self, threads: int, matrices: list[Tensor]) -> float:
        torch.set_num_threads(threads)
        load = self._load
        prompts = self._seconds(matrices, load.streams * load.prompt_tokens, 1)
        decode = self._seconds(matrices, load.streams, DECODES) / DECODES
        # The prompts' last position draws the first token.
        return load.tokens / (prompts + (load.output_tokens - 1) * decode)

    def _seconds(self, matrices: list[Tensor], rows: int, times: int) -> float:
        inputs = {width: torch.randn(rows, width) for width in {matrix.shape[1] for matrix in matrices}}
        began = time.perf_counter()
        for _ in range(times):
            for matrix in matrices:
                linear(inputs[matrix.shape[1]], matrix)
        return time.perf_counter() - began


def said(config: ModelConfig) -> str:
    """What is multiplied."""
    threads = torch.get_num_threads()
    return f"products of {config.num_hidden_layers} layers, torch {torch.__version__}, 1 or {threads} threads"


def main(checkpoint: str, load: str) -> None:
    """Answer until the input ends."""
    products = Products(checkpoint, Closed(**json.loads(load)))
    answering(said(model_config(checkpoint)), products.window)


if __name__ == "__main__":
    main(*sys.argv[1:])
