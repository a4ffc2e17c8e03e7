"""Prompts with the lengths of real conversations, evenly picked from the Azure trace. Their tokens are made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvledger_agent.load.traces import read_trace

VOCABULARY = 32_000


def prompt_lengths(path: Path, count: int) -> list[int]:
    """The prompt lengths of so many requests, evenly spaced over the whole trace."""
    rows = read_trace(path).rows
    return [rows[number * len(rows) // count].prompt_tokens for number in range(count)]


def prompts(lengths: list[int]) -> list[list[int]]:
    """Random tokens of these lengths, always the same ones; no two begin alike."""
    random = np.random.default_rng(len(lengths))
    made: list[list[int]] = [random.integers(0, VOCABULARY, length).tolist() for length in lengths]
    return made
