"""The embedded models: shapes of small Llamas that need no file. Their weights are drawn from a seed, see `weights`.

Token ids 0 to 255 are bytes; those above are special and none of them ends a sequence. Imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

from kvledger_engine.model.config import ModelConfig

EMBEDDED_NAME = "embedded"
# head_dim differs from hidden/heads, and heads are grouped: what only large models have is in the small one too.
EMBEDDED = ModelConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    qk_norm=True,
)
# Two cache groups, and a window that a prompt of a few lines fills.
EMBEDDED_WINDOWS = replace(EMBEDDED, num_hidden_layers=4, layer_windows=(None, 64, None, 64))
EMBEDDED_MODELS = {EMBEDDED_NAME: EMBEDDED, "embedded-windows": EMBEDDED_WINDOWS}
"""The embedded models by name."""
