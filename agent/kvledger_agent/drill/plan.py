"""What a drill does, and its bounds: a plan cannot be large enough to harm the server that it is meant to test."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger_agent.bounds import above_zero
from kvledger_agent.errors import UsageError
from kvledger_agent.load.tokens import DEFAULT_IDS_BELOW, PromptAs, check_ids_below

MOST_CLIENTS, MOST_TOKENS, MOST_ROUNDS = 256, 1 << 16, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """Everything a drill is determined by. Raises UsageError for what is out of bounds.

    Attributes:
        clients: requests open at once.
        prompt_tokens, max_tokens: of each; a request has to last until it is dropped.
        give_up_seconds: patience of the clients that time out.
        rounds: how often each client of the storm comes again.
        patience_seconds: how long each single event may take: a first token, a level that comes back.
        seed: of the prompts; another one for each drill, so that no prompt is in the cache already.
        ignore_eos: ask for all of `max_tokens` (vLLM, SGLang and kvledger's own engine).
    """

    clients: int = 8
    prompt_tokens: int = 128
    max_tokens: int = 512
    give_up_seconds: float = 1.0
    rounds: int = 3
    patience_seconds: float = 60.0
    seed: int = 0
    model: str | None = None
    prompt_as: PromptAs = PromptAs.TOKENS
    token_ids_below: int = DEFAULT_IDS_BELOW
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        """Checks the bounds."""
        whole = {
            "clients": MOST_CLIENTS,
            "prompt_tokens": MOST_TOKENS,
            "max_tokens": MOST_TOKENS,
            "rounds": MOST_ROUNDS,
        }
        for name, most in whole.items():
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name}={getattr(self, name)}: give 1 to {most}")
        for name in ("give_up_seconds", "patience_seconds"):
            above_zero(name, getattr(self, name))
        check_ids_below(self.token_ids_below)
