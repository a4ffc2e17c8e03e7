"""Windows of `transformers` continuous batching: `python -m bench.transformers_batching CHECKPOINT LOAD` for `asked`.

No HTTP is between: token ids go in and come out of its own loop, which is in its favour.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from bench.asked import answering
from bench.closed import Closed
from bench.errors import BenchError

BATCH_TOKENS = 2048


class Batching:
    """One model and its manager, which is kept from window to window."""

    def __init__(self, checkpoint: str, load: Closed) -> None:
        self._load = load
        # Its functions have no annotations, and its type for models leaves the mixin of continuous batching out.
        models: Any = AutoModelForCausalLM
        configs: Any = GenerationConfig
        self._model = models.from_pretrained(checkpoint, attn_implementation="sdpa", dtype=torch.float32).eval()
        self._config = configs(max_new_tokens=load.output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        # Its own sizes are made for a card: a cache that fills the memory, and attention over as much of it.
        self._batching = ContinuousBatchingConfig(num_blocks=2 * load.streams, max_batch_tokens=BATCH_TOKENS)

    def window(self, seed: int) -> float:
        """Output tokens a second. Raises `BenchError` if an answer has not as many tokens as asked for."""
        prompts = self._load.prompts(seed)
        began = time.perf_counter()
        answers = self._model.generate_batch(
            inputs=prompts,
            generation_config=self._config,
            continuous_batching_config=self._batching,
            progress_bar=False,
            persistent_manager=True,
        )
        seconds = time.perf_counter() - began
        lengths = {len(answer.generated_tokens) for answer in answers.values()}
        if len(answers) != len(prompts) or lengths != {self._load.output_tokens}:
            raise BenchError(f"{len(answers)} answers of {lengths} tokens")
        return self._load.tokens / seconds

    def close(self) -> None:
        """End its loop."""
        self._model.destroy_cached_continuous_batching_manager()


def main(checkpoint: str, load: str) -> None:
    """Answer until the input ends."""
    batching = Batching(checkpoint, Closed(**json.loads(load)))
    threads = torch.get_num_threads()
    answering(f"transformers {transformers.__version__}, torch {torch.__version__}, {threads} threads", batching.window)
    batching.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
