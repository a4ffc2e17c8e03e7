"""Sampling: draws follow the softmax, and depend on seed, position and logits and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvledger_engine.cells import mix
from kvledger_engine.sampling import draw, gumbel_noise, score

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, -3.0])


def _draw(logits: torch.Tensor, temperature: float, seeds: range, positions: range) -> list[int]:
    """One draw for each seed and position, all from the same logits."""
    pairs = [(seed, position) for seed in seeds for position in positions]
    count = len(pairs)
    tokens = draw(
        logits.expand(count, -1),
        np.full(count, temperature, np.float32),
        np.array([seed for seed, _ in pairs], np.uint64),
        np.array([position for _, position in pairs], np.int64),
    )
    return tokens.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("seeds", "positions"), [(range(7, 8), range(20_000)), (range(20_000), range(7, 8))])
def test_draws_follow_the_softmax_over_positions_and_over_seeds(
    temperature: float, seeds: range, positions: range
) -> None:
    counts = np.bincount(_draw(LOGITS, temperature, seeds, positions), minlength=6)
    expected = (LOGITS.double() / temperature).softmax(0).numpy() * counts.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 20.5, counts  # five degrees of freedom, p = 0.001


def test_neighbouring_draws_are_independent() -> None:
    tokens = np.array(_draw(torch.zeros(4), 1.0, range(1), range(20_001)))
    counts = np.bincount(tokens[:-1] * 4 + tokens[1:], minlength=16)
    assert ((counts - 1250) ** 2 / 1250).sum() < 37.7, counts  # fifteen degrees of freedom, p = 0.001


def test_without_a_temperature_the_most_likely_token_is_drawn_and_of_equals_the_first() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [3.0, 1.0, 3.0]])
    tokens = draw(logits, np.zeros(2, np.float32), np.arange(2, dtype=np.uint64), np.arange(2))
    assert tokens.tolist() == [1, 0]


def test_a_draw_does_not_depend_on_the_rest_of_the_batch() -> None:
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(40, 97)))
    temperatures = np.where(np.arange(40) % 3 == 0, 0, generator.uniform(0.2, 3, 40)).astype(np.float32)
    seeds = generator.integers(0, 1 << 64, 40, dtype=np.uint64)
    positions = generator.integers(1, 100_000, 40)
    together = draw(logits, temperatures, seeds, positions).tolist()
    order = generator.permutation(40)
    assert draw(logits[order], temperatures[order], seeds[order], positions[order]).tolist() == [
        together[row] for row in order
    ]
    alone = [int(draw(logits[[row]], temperatures[[row]], seeds[[row]], positions[[row]]).item()) for row in range(40)]
    assert alone == together


def test_another_seed_or_position_draws_anew() -> None:
    flat = torch.zeros(1000)
    assert len(set(_draw(flat, 1.0, range(50), range(1)))) > 45
    assert len(set(_draw(flat, 1.0, range(1), range(50)))) > 45


def test_the_noise_is_the_same_on_every_device() -> None:
    """Pinned by the same arithmetic in numpy's unsigned integers: what is drawn must not move with a torch version."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    seeds, positions = np.array([0, 5, (1 << 64) - 1], np.uint64), np.array([1, 9, 70_000], np.uint64)
    streams = mix(mix(seeds + golden) + (positions + np.uint64(1)) * golden)
    bits = mix(streams[:, None] + np.arange(1, 8, dtype=np.uint64) * golden) >> np.uint64(12)
    expected = -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-52))
    noise = gumbel_noise(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions.view(np.int64)), 7)
    torch.testing.assert_close(noise, torch.from_numpy(expected), atol=1e-12, rtol=1e-12)


def test_a_temperature_is_applied_in_more_than_half_precision() -> None:
    logits = torch.tensor([[1.0, 1.0 + 2**-7]], dtype=torch.bfloat16)
    cold = np.full(1, 1e-4, np.float32)
    tokens = [int(draw(logits, cold, np.array([seed], np.uint64), np.array([3])).item()) for seed in range(50)]
    assert tokens == [1] * 50


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, 1), (0.3, 1), (0.6, 2), (0.9, 4), (1.0, 6)])
def test_top_p_leaves_the_likeliest_tokens_with_their_own_shares(top_p: float, kept: int) -> None:
    count = 4000
    tokens = draw(
        LOGITS.expand(count, -1),
        np.ones(count, np.float32),
        np.arange(count, dtype=np.uint64),
        np.zeros(count, np.int64),
        np.full(count, top_p, np.float32),
    ).numpy()
    shares = LOGITS.double().softmax(0).numpy()
    likeliest = np.argsort(-shares)[:kept]
    assert set(tokens.tolist()) == set(likeliest.tolist())
    expected = shares[likeliest] / shares[likeliest].sum() * count
    chi_square = ((np.bincount(tokens, minlength=6)[likeliest] - expected) ** 2 / expected).sum()
    assert chi_square < 25, tokens


def test_top_p_counts_after_the_temperature_row_by_row_and_leaves_other_draws_as_they_are() -> None:
    generator = np.random.default_rng(1)
    logits = torch.from_numpy(generator.normal(size=(30, 50)))
    temperatures = np.where(np.arange(30) % 3 == 0, 0, 1.5).astype(np.float32)
    seeds, positions = np.arange(30, dtype=np.uint64), np.arange(30)
    plain = draw(logits, temperatures, seeds, positions)
    top_ps = np.where(np.arange(30) % 2 == 0, 1.0, 0.0).astype(np.float32)
    mixed = draw(logits, temperatures, seeds, positions, top_ps)
    assert mixed[::2].tolist() == plain[::2].tolist()
    assert mixed[1::2].tolist() == logits.argmax(-1)[1::2].tolist()


def test_scores_are_logarithms_of_the_softmax_and_the_likeliest_come_first() -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(5, 40)))
    drawn = torch.tensor([3, 1, 4, 1, 5])
    of_drawn, tokens, values = score(logits, drawn, 3)
    wanted = torch.log_softmax(logits, -1)
    assert torch.allclose(of_drawn.double(), wanted[range(5), drawn], atol=1e-5)
    assert tokens.tolist() == wanted.sort(-1, descending=True).indices[:, :3].tolist()
    assert torch.allclose(values.double(), wanted.gather(1, tokens), atol=1e-5)
