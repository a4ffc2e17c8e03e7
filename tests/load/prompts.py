"""What a prompt must be, said once more and plainly: the oracle of `PromptWriter`."""

from __future__ import annotations

from kvledger_agent.load.arrivals import Arrival
from kvledger_agent.load.tokens import DEFAULT_IDS_BELOW, run_ids


def prompt_ids(arrival: Arrival, *, seed: int, below: int = DEFAULT_IDS_BELOW) -> list[int]:
    """The arrival's `prompt_tokens` token ids: its shared runs, cut at the prompt's length, then tokens of its own."""
    ids: list[int] = []
    for run in arrival.prefix or ():
        tokens = min(run.tokens, arrival.prompt_tokens - len(ids))
        ids += run_ids(seed=seed, key=f"prefix/{run.scope}/{run.id}", tokens=tokens, below=below)
    own = arrival.prompt_tokens - len(ids)
    return ids + run_ids(seed=seed, key=f"own/{arrival.serial}", tokens=own, below=below)
