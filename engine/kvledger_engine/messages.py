"""What the HTTP process and the engine core say to each other: one frame per direction and step.

A frame is a list of these structs as MessagePack arrays behind a 4-byte little-endian length; both ends are always of
one version. Prompt tokens travel here and stay in the core's private memory; they never reach the ledger.
"""

from __future__ import annotations

import msgspec

from kvledger_engine.quotas import Quotas


class NewRequest(msgspec.Struct, tag="new", frozen=True, kw_only=True):
    """A request to compute. `salt` isolates prefix sharing; `n` sequences are forked from one prompt.

    `logprobs` is how many of the likeliest tokens come with the score of each drawn one; None = no scores. Timeouts
    are of this request alone, where the engine's own are longer or none; None = the engine's. `arrived_ns` is the
    ledger clock at which it was received; 0 = when the core takes it.
    """

    request_id: str
    prompt: list[int]
    max_tokens: int
    tenant: str = "default"
    request_class: str = "default"
    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    salt: str = ""
    stop_tokens: list[int] = []
    logprobs: int | None = None
    queue_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    arrived_ns: int = 0


class Cancel(msgspec.Struct, tag="cancel", frozen=True, kw_only=True):
    """Give up requests; `cause` is a `CancelCause` word. Unknown or ended ids are ignored.

    `since_ns` is the ledger clock at which the HTTP side knew it; 0 = when the core takes it.
    """

    request_ids: list[str]
    cause: str
    since_ns: int = 0


class Stop(msgspec.Struct, tag="stop", frozen=True, kw_only=True):
    """A sequence has all its text: it ends as one that drew a stop token. Ignored where it has ended.

    `since_ns` is the ledger clock at which the HTTP side knew it.
    """

    request_id: str
    index: int
    since_ns: int


class Drain(msgspec.Struct, tag="drain", frozen=True):
    """Refuse new requests from now on and stop when the last one has ended."""


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True, array_like=True):
    """The core is ready: what the HTTP side must know to answer.

    `tokenizer_path` is the checkpoint's `tokenizer.json`, empty where tokens are bytes. `capacity_tokens` is what the
    pool holds; 0 = not said. `has_scores` is false for a model without a distribution over tokens. `quotas` of tenants
    and classes bound what a chat gets that does not say how much it wants; None = there are none. `declared` are
    clauses on what makes this engine another than its model's, such as answers that change.
    """

    engine: str
    model: str
    max_model_len_tokens: int
    vocab_size: int
    ledger_path: str
    tokenizer_path: str = ""
    eos_token_ids: list[int] = []
    capacity_tokens: int = 0
    has_scores: bool = True
    block_size_tokens: int = 1
    quotas: Quotas | None = None
    declared: list[str] = []


class StartFailed(msgspec.Struct, tag="start_failed", frozen=True, array_like=True):
    """The core cannot start and ends; `message` is one line for the user. Comes instead of `Hello`."""

    message: str


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities as the model gives them, before temperature and top_p: of the drawn token,
    and of the likeliest tokens, the likeliest first."""

    logprob: float
    top_tokens: list[int]
    top_logprobs: list[float]


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One generated token of sequence `index` of a request, with scores where they were asked for."""

    request_id: str
    index: int
    token: int
    scores: Scores | None = None


class Tokens(msgspec.Struct, tag="tokens", frozen=True, array_like=True):
    """The tokens of one step: `tokens[i]` is of sequence `indices[i]` of request `request_ids[i]`.

    `scores` has those of the i that asked for them; None = nobody did.
    """

    request_ids: list[str]
    indices: list[int]
    tokens: list[int]
    scores: dict[int, Scores] | None = None

    def each(self) -> list[Token]:
        """One by one."""
        scores = self.scores or {}
        rows = zip(self.request_ids, self.indices, self.tokens, strict=True)
        return [Token(*row, scores.get(number)) for number, row in enumerate(rows)]


class Finished(msgspec.Struct, tag="finished", frozen=True, kw_only=True, array_like=True):
    """Sequence `index` of a request has ended and holds no block."""

    request_id: str
    index: int
    reason: str
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int


class Refused(msgspec.Struct, tag="refused", frozen=True, kw_only=True, array_like=True):
    """A request that was never admitted; `reason` is a `RejectionReason` word, `advice` a sentence for the client."""

    request_id: str
    reason: str
    advice: str
    retryable: bool


ToCore = NewRequest | Cancel | Stop | Drain
FromCore = Hello | StartFailed | Tokens | Finished | Refused
