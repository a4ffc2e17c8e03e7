"""The output of one sequence as it reaches its client: text without stop strings, and scores in OpenAI's two shapes.

Owns where a sequence's text ends. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvledger.words import FinishReason
from kvledger_engine.messages import Finished, Scores, Token
from kvledger_engine.textstop import TextStop
from kvledger_engine.tokenizer import Tokenizer


class Output:
    """One sequence: tokens in, text out. `stopped` once a stop string is complete; what follows counts for nothing."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, chat: bool) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self._stream, self._stop = tokenizer.stream(), TextStop(stops)
        self._tokens = 0
        self._offset = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._stop.stopped

    def feed(self, token: Token) -> tuple[str, Any] | None:
        """What a token brings to the text, and its scores as JSON or None. None altogether after a stop."""
        if self.stopped:
            return None
        self._tokens += 1
        text = self._stream.feed(token.token)
        scores = None if token.scores is None else self._shown(token.token, token.scores)
        self._offset += len(text)
        return self._stop.feed(text), scores

    def end(self, finished: Finished) -> tuple[str, Finished]:
        """The rest of the text, and the end as the client sees it: a text that was stopped has ended by `stop`.

        Tokens that were under way when it was stopped are on the ledger; the client's usage is without them.
        """
        text = "" if self.stopped else self._stop.feed(self._stream.end())
        if self.stopped:
            reason = FinishReason.STOP.word
            return text, msgspec.structs.replace(finished, reason=reason, output_tokens=self._tokens)
        return text + self._stop.end(), finished

    def _shown(self, token: int, scores: Scores) -> Any:
        return self._chat_scores(token, scores) if self._chat else self._completion_scores(token, scores)

    def _completion_scores(self, token: int, scores: Scores) -> dict[str, Any]:
        name = self._tokenizer.name
        top = {name(each): score for each, score in zip(scores.top_tokens, scores.top_logprobs, strict=True)}
        return {
            "tokens": [name(token)],
            "token_logprobs": [scores.logprob],
            "top_logprobs": [top],
            "text_offset": [self._offset],
        }

    def _chat_scores(self, token: int, scores: Scores) -> dict[str, Any]:
        top = zip(scores.top_tokens, scores.top_logprobs, strict=True)
        entry = self._entry(token, scores.logprob) | {"top_logprobs": [self._entry(*each) for each in top]}
        return {"content": [entry], "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.raw(token)
        return {"token": self._tokenizer.name(token), "logprob": logprob, "bytes": None if raw is None else list(raw)}


def joined(parts: Sequence[Any]) -> Any:
    """The scores of all tokens of a sequence in one object; None where there are none."""
    if not parts:
        return None
    whole: dict[str, Any] = {name: [] if isinstance(value, list) else value for name, value in parts[0].items()}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, list):
                whole[name].extend(value)
    return whole
