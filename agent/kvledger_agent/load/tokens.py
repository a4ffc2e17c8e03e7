"""Deterministic prompt content: equal (seed, run) gives equal tokens. Knows no tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache

import numpy as np

from kvledger_agent.errors import UsageError
from kvledger_agent.load.arrivals import Arrival

DEFAULT_IDS_BELOW = 256
LEAST_IDS_BELOW, MOST_IDS_BELOW = 3, 1 << 20
"""Prompts have to differ; and every id's text is kept."""
_WORD_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work number night point home water room mother area "
    "money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name"
)
WORDS = _WORD_LIST.split()


class PromptAs(StrEnum):
    """How a prompt is sent: an array of token ids, or text of about one token per word."""

    TOKENS = "tokens"
    TEXT = "text"


def run_ids(*, seed: int, key: str, tokens: int, below: int = DEFAULT_IDS_BELOW) -> list[int]:
    """Token ids in [1, below) of one run; a shorter run with the same key is a prefix of a longer one.

    The ids are the bytes of SHAKE-256, whose output of any length is a prefix of every longer one; 0 is left out, as
    vocabularies like to keep it for padding.
    """
    digest = hashlib.shake_256(f"{seed}/{key}".encode()).digest(4 * tokens)
    ids: list[int] = (np.frombuffer(digest, dtype="<u4") % (below - 1) + 1).tolist()
    return ids


def check_ids_below(below: int) -> None:
    """Raises `UsageError` where token ids below this leave nothing to draw, or are beyond any vocabulary."""
    if not LEAST_IDS_BELOW <= below <= MOST_IDS_BELOW:
        bounds = f"{LEAST_IDS_BELOW} to {MOST_IDS_BELOW:,}, such as the model's vocabulary"
        raise UsageError(f"token_ids_below={str(below)[:40]}: use {bounds}")


class PromptWriter:
    """Writes prompts as JSON text; the JSON of shared runs is kept, so that a long shared prompt is cheap to send."""

    def __init__(self, *, seed: int, prompt_as: PromptAs = PromptAs.TOKENS, below: int = DEFAULT_IDS_BELOW) -> None:
        """Raises `UsageError` as `check_ids_below` does."""
        check_ids_below(below)
        self._seed = seed
        self._below = below
        text = prompt_as is PromptAs.TEXT
        self._spelled = [WORDS[token % len(WORDS)] if text else str(token) for token in range(below)]
        self._between, self._around = (" ", '""') if text else (",", "[]")
        self._shared = lru_cache(maxsize=8192)(self._fragment)

    def json(self, arrival: Arrival) -> str:
        """The value of `prompt` in the request body."""
        *runs, own = _parts(arrival)
        fragments = [self._shared(key, tokens) for key, tokens in runs]
        written = self._between.join(filter(None, [*fragments, self._fragment(*own)]))
        return f"{self._around[0]}{written}{self._around[1]}"

    def _fragment(self, key: str, tokens: int) -> str:
        ids = run_ids(seed=self._seed, key=key, tokens=tokens, below=self._below)
        return self._between.join(map(self._spelled.__getitem__, ids))


def _parts(arrival: Arrival) -> Iterator[tuple[str, int]]:
    """(key, tokens) of each shared run, cut at the prompt's length, then of the request's own tokens (maybe 0)."""
    left = arrival.prompt_tokens
    for run in arrival.prefix or ():
        tokens = min(run.tokens, left)
        yield f"prefix/{run.scope}/{run.id}", tokens
        left -= tokens
    yield f"own/{arrival.serial}", left
