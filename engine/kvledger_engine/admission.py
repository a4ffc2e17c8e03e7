"""The door: which requests are refused before any block is held, and what their clients are told. Changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvledger.words import RejectionReason, RequestClass
from kvledger_engine.allocation import Allocation
from kvledger_engine.config import EngineConfig
from kvledger_engine.decisions import REFUSALS, Decision
from kvledger_engine.messages import NewRequest
from kvledger_engine.request import RequestTable
from kvledger_engine.waits import WaitQueue
from kvledger_engine.windows import most_blocks

_MAX_NAME_BYTES = 64
_MAX_ID_BYTES = 256
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned away; `fact` is what was found, with its numbers."""

    reason: RejectionReason
    fact: str

    @property
    def advice(self) -> str:
        """One sentence for the client: the fact, and what to do. Of a bad request the fact says both."""
        return self.fact if self.reason is RejectionReason.BAD_REQUEST else f"{self.fact}: {self._decided.advice}."

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, here or at another replica."""
        return self._decided.retryable

    @property
    def _decided(self) -> Decision:
        return REFUSALS[self.reason]


def is_tenant_name(name: str) -> bool:
    """Whether the ledger can keep a tenant under this name without changing it."""
    return 1 <= len(name.encode()) <= _MAX_NAME_BYTES and name.isprintable()


class Door:
    """Judges arrivals. Knows the sizes of the engine, its quotas, the queue and the slots; holds nothing."""

    def __init__(
        self, config: EngineConfig, requests: RequestTable, queue: WaitQueue, tenant_column: Callable[[str], int]
    ) -> None:
        self._config, self._requests, self._queue = config, requests, queue
        self._quotas, self._tenant_column = config.quotas, tenant_column
        self.draining = False

    def refusal(self, request: NewRequest) -> Refusal | None:
        """The first reason against a request, None when it may wait for its turn."""
        if self.draining:
            return Refusal(RejectionReason.DRAINING, "The engine shuts down")
        fault = self._fault_of_form(request) or self._fault_of_prompt(request)
        if fault is not None:
            return Refusal(RejectionReason.BAD_REQUEST, fault)
        return (
            self._too_long(request)
            or self._too_big(request)
            or self._beyond_quota(request)
            or self._no_room_to_wait(request)
            or self._too_many_waiting(request)
        )

    def _fault_of_form(self, request: NewRequest) -> str | None:
        limit = self._config.max_num_seqs
        if not 1 <= len(request.request_id.encode()) <= _MAX_ID_BYTES:
            return f"Use a request id of 1 to {_MAX_ID_BYTES} bytes."
        if self._requests.is_live(request.request_id):
            return "The request id belongs to a request that has not ended: use another one."
        if request.max_tokens < 1:
            return f"max_tokens={request.max_tokens}: ask for at least one token."
        if not 1 <= request.n <= limit:
            return f"n={request.n}: ask for 1 to {limit} sequences."
        if request.n > 1 and self._config.allocation != Allocation.PAGED:
            return f"n={request.n}: this engine cannot share blocks between sequences: ask for them one by one."
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            return f"temperature={request.temperature}: use a finite number of 0 or more."
        if not 0 <= request.top_p <= 1:
            return f"top_p={request.top_p}: use a number from 0 to 1."
        if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
            return f"logprobs={request.logprobs}: ask for 0 to {MAX_LOGPROBS} of the likeliest tokens."
        for name in ("queue_timeout_seconds", "run_timeout_seconds"):
            seconds = getattr(request, name)
            if seconds is not None and not 0 < seconds < math.inf:
                return f"{name}={seconds}: use a finite number of seconds above 0."
        if request.request_class not in RequestClass.words():
            return f"Unknown request class: use one of {', '.join(RequestClass.words())}."
        if not is_tenant_name(request.tenant):
            return f"Use a tenant name of 1 to {_MAX_NAME_BYTES} bytes that can be printed."
        return None

    def _fault_of_prompt(self, request: NewRequest) -> str | None:
        if not request.prompt:
            return "The prompt is empty: send at least one token."
        vocab_size = self._config.vocab_size
        try:
            ids = np.array(request.prompt + request.stop_tokens, np.int64)
        except OverflowError:
            return f"A token id lies outside the vocabulary of {vocab_size}."
        if ids.min() < 0 or ids.max() >= vocab_size:
            return f"A token id lies outside the vocabulary of {vocab_size}."
        return None

    def _too_long(self, request: NewRequest) -> Refusal | None:
        total = len(request.prompt) + request.max_tokens
        limit, whose = min(self._context_limits(request))
        if total <= limit:
            return None
        sizes = f"Prompt ({len(request.prompt)}) and max_tokens ({request.max_tokens}) make {total} tokens"
        return Refusal(RejectionReason.CONTEXT_TOO_LONG, f"{sizes}, {whose} holds {limit}")

    def _context_limits(self, request: NewRequest) -> list[tuple[int, str]]:
        limits = [(self._config.max_model_len_tokens, "the context")]
        if self._quotas is not None:
            quota, policy = self._quotas.of(request.tenant), self._quotas.policy(request.request_class)
            if quota.max_context is not None:
                limits.append((quota.max_context, "the tenant's context"))
            if policy.max_context is not None:
                limits.append((policy.max_context, f"the context of class {request.request_class}"))
        return limits

    def _too_big(self, request: NewRequest) -> Refusal | None:
        needed, capacity = self.most_blocks(request), self._config.capacity_blocks
        if needed <= capacity:
            return None
        fact = f"The request may need {needed} blocks and the whole pool has {capacity}"
        return Refusal(RejectionReason.EXCEEDS_POOL, fact)

    def _beyond_quota(self, request: NewRequest) -> Refusal | None:
        if self._quotas is None:
            return None
        needed, capacity = self.most_blocks(request), self._config.capacity_blocks
        ceiling = self._quotas.ceiling_blocks(self._quotas.of(request.tenant), capacity)
        if needed <= ceiling:
            return None
        fact = f"The request may need {needed} blocks and its tenant can hold {ceiling} of {capacity}"
        return Refusal(RejectionReason.EXCEEDS_QUOTA, fact)

    def most_blocks(self, request: NewRequest) -> int:
        """Blocks a request holds at the most: its sequences share the full blocks of their prompt and nothing else."""
        prompt, config = len(request.prompt), self._config
        shared = prompt if request.n > 1 else 0
        return most_blocks(
            config.cache_groups,
            prompt + request.max_tokens,
            config.max_num_batched_tokens,
            sequences=request.n,
            shared_tokens=shared,
        )

    def _no_room_to_wait(self, request: NewRequest) -> Refusal | None:
        if len(self._queue) < self._config.max_waiting and self._requests.free_slots >= request.n:
            return None
        return Refusal(RejectionReason.QUEUE_FULL, f"{len(self._queue)} requests wait already")

    def _too_many_waiting(self, request: NewRequest) -> Refusal | None:
        most = None if self._quotas is None else self._quotas.of(request.tenant).max_waiting
        waiting = 0 if most is None else self._queue.requests_of(self._tenant_column(request.tenant))
        if most is None or waiting < most:
            return None
        return Refusal(RejectionReason.TENANT_QUOTA, f"{waiting} requests of the tenant wait already")
