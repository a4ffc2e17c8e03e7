"""Sampling: the token each row of logits draws. Its noise is a function of (seed, position, token id) and nothing else.

The same seed, position and logits draw the same token whatever else is in the batch, after a preemption, on any device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvledger.views import I64, U64
from kvledger_engine.batch import F32


def draw(logits: Tensor, temperatures: F32, seeds: U64, positions: I64, top_ps: F32 | None = None) -> Tensor:
    """One token id per row of `logits` [m, vocab_size], int64[m] on their device.

    `temperatures` F32[m], 0 = the most likely token, the first of equals; `seeds` U64[m]; `positions` I64[m], where in
    its sequence the drawn token will stand. Gumbel-max (Gumbel, 1954): the largest of logit / temperature + noise is a
    draw from their softmax. Noise takes 16 bytes a score of the rows with a temperature. `top_ps` F32[m] in [0, 1]
    leaves each row the likeliest tokens that reach this share of the softmax together; None = all tokens.
    """
    drawn = _likeliest(logits)
    warm = np.flatnonzero(temperatures > 0)
    if not len(warm):
        return drawn

    def of_warm(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values[warm]).to(logits.device)

    rows = torch.from_numpy(warm).to(logits.device)
    scores = logits.index_select(0, rows).double() / of_warm(temperatures.astype(np.float64))[:, None]
    if top_ps is not None:
        scores = _nucleus(scores, of_warm(top_ps.astype(np.float64)))
    scores += gumbel_noise(of_warm(seeds.view(np.int64)), of_warm(positions), logits.shape[1])
    return drawn.index_copy(0, rows, scores.argmax(dim=-1))


def _likeliest(logits: Tensor) -> Tensor:
    """The largest score's token of each row, the first of equals. On a CPU numpy takes an eighth of torch's time."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _nucleus(scores: Tensor, top_ps: Tensor) -> Tensor:
    """Scores [m, vocab_size] with -inf where a token is not among the likeliest that make up `top_ps` [m] together.

    Nucleus sampling (Holtzman et al., 2020). The likeliest token always stays; of equals the first ones do.
    """
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    shares = ranked.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    dropped = (before >= top_ps[:, None]) & (top_ps[:, None] < 1)
    dropped[:, 0] = False
    return scores.scatter(1, order, ranked.masked_fill_(dropped, -torch.inf))


def score(logits: Tensor, drawn: Tensor, tops: int) -> tuple[Tensor, Tensor, Tensor]:
    """Natural logarithms of the softmax of `logits` [s, vocab_size]: of `drawn` [s], and the `tops` largest per row.

    Returns float32[s], token ids int64[s, tops], float32[s, tops], the largest first.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    values, tokens = logprobs.topk(min(tops, logits.shape[1]), dim=-1)
    return logprobs.gather(1, drawn[:, None])[:, 0], tokens, values


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, float64[m, vocab_size], from int64[m] seeds and positions."""
    tokens = torch.arange(1, vocab_size + 1, device=seeds.device)
    streams = _mix(_mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN)
    bits = _shift(_mix(streams[:, None] + tokens * _GOLDEN), 12)
    # 52 bits and a half: neither 0 nor 1, whose logarithms are no numbers, can come out of rounding.
    uniform = (bits.double() + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_()


# Integers wrap in torch as they do modulo 2^64; these are the unsigned constants of splitmix64 as signed ones.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def _shift(values: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _mix(values: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014), as `cells.mix`, in torch."""
    values = (values ^ _shift(values, 30)) * _FIRST
    values = (values ^ _shift(values, 27)) * _SECOND
    return values ^ _shift(values, 31)
