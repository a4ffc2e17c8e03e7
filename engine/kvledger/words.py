"""The vocabulary: every closed set of words that appears in a ledger, a metric label or a report.

Owns the numbers under which words are stored in a ledger. Numbers are append-only: a saved ledger stays readable.
The lower-case member name is the word itself, as it appears in labels, JSON and the documentation.
"""

from __future__ import annotations

from enum import IntEnum


class Word(IntEnum):
    """An `IntEnum` whose lower-case name is the word shown to people."""

    @property
    def word(self) -> str:
        """The word as it appears in labels and JSON."""
        return self.name.lower()

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """All words of this set, in stored order."""
        return tuple(member.word for member in cls)


class BlockState(Word):
    """What a block is: free (no content kept), cached (ref_count 0, content evictable), active (ref_count >= 1)."""

    FREE = 0
    CACHED = 1
    ACTIVE = 2


class RequestState(Word):
    """The state of a request slot. FINISHING has ended but still holds blocks; FINISHED holds none."""

    FINISHED = 0
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    SWAPPED = 4
    FINISHING = 5


class WaitCause(Word):
    """Why a waiting request waits. At every instant it has exactly one cause."""

    POOL = 0
    TENANT_QUOTA = 1
    FAIR_SHARE = 2
    CLASS_BUDGET = 3
    BATCH_SLOTS = 4
    TOKEN_BUDGET = 5
    STEP = 6
    PREEMPTION = 7
    PAUSED = 8
    DEFERRED = 9


class RejectionReason(Word):
    """Why a request was refused before any block was held."""

    CONTEXT_TOO_LONG = 0
    EXCEEDS_POOL = 1
    EXCEEDS_QUOTA = 2
    QUEUE_FULL = 3
    TENANT_QUOTA = 4
    QUEUE_TIMEOUT = 5
    DRAINING = 6
    BAD_REQUEST = 7


class FinishReason(Word):
    """How an accepted request ended."""

    STOP = 0
    LENGTH = 1
    CANCELLED = 2
    RUN_TIMEOUT = 3
    POOL_EXHAUSTED = 4
    OUT_OF_MEMORY = 5
    ENGINE_ERROR = 6


TURNED_AWAY = 255
"""In place of a finish reason, of a request that had been taken in and was refused as `queue_timeout`."""


class CancelCause(Word):
    """Who cancelled a request: its client went away, or the API was told to."""

    DISCONNECT = 0
    API = 1


class ReleaseCause(Word):
    """What made a request give its blocks back."""

    FINISH = 0
    DISCONNECT = 1
    API = 2
    TIMEOUT = 3
    ERROR = 4
    PREEMPTION = 5


class PinKind(Word):
    """What holds a block without being a live table."""

    NONE = 0
    DEFERRED_FREE = 1
    TRANSFER = 2
    COPY_ON_WRITE = 3
    CONNECTOR = 4


class RequestClass(Word):
    """The service class of a request."""

    DEFAULT = 0
    INTERACTIVE = 1
    BATCH = 2


class PreemptionMode(Word):
    """How a preempted request gets its blocks' content back."""

    RECOMPUTE = 0
    SWAP = 1


class PreemptedFate(Word):
    """What became of a preempted request's blocks: content kept in the prefix cache, recycled, or swapped out."""

    KEPT = 0
    RECYCLED = 1
    SWAPPED = 2


class SwapDirection(Word):
    """Which way a block was copied: out of the pool into host memory, or in again."""

    OUT = 0
    IN = 1


class StepPhase(Word):
    """The parts of an engine step that are timed."""

    SCHEDULE = 0
    MODEL = 1
    SAMPLE = 2
    PUBLISH = 3


class TokenKind(Word):
    """Which tokens of a request are counted."""

    PROMPT = 0
    GENERATION = 1


class Event(Word):
    """Lifecycle events of a request, as the events ring stores them."""

    NONE = 0
    ARRIVED = 1
    ADMITTED = 2
    FIRST_TOKEN = 3
    PREEMPTED = 4
    CANCELLED = 5
    FINISHED = 6
    RELEASED = 7
    REJECTED = 8
    FORKED = 9


class FindingKind(Word):
    """What is seen to be wrong; faults are not separable from outside (docs/findings.md).

    The first eight are what a ledger shows, block by block. The others are symptoms on a scraped engine's page.
    """

    EXCESS_REFERENCE = 0
    MISSING_REFERENCE = 1
    LOST_BLOCK = 2
    DOUBLE_LISTED = 3
    SHARED_WRITE = 4
    STALE_INDEX_ENTRY = 5
    PIN_OVERDUE = 6
    FINISHING_OVERDUE = 7
    IDLE_HOLD = 8
    USAGE_OUT_OF_RANGE = 9
    WAITING_WITHOUT_RUNNING = 10
    FROZEN_COUNTERS = 11
    DEFERRED_WITHOUT_PROGRESS = 12


LEDGER_KINDS = tuple(kind for kind in FindingKind if kind < FindingKind.IDLE_HOLD)
"""What only a ledger shows."""
SYMPTOM_KINDS = tuple(kind for kind in FindingKind if kind >= FindingKind.IDLE_HOLD)
"""What a scraped page can show."""


class NoteKind(Word):
    """What is worth knowing of an engine and is no fault: docs/findings.md."""

    PREFIX_PINNING = 0
    SHARING_COSTS_MORE = 1


class Certainty(Word):
    """How sure a finding is: proven by what is seen, hardly explained otherwise, or one explanation of several."""

    CERTAIN = 0
    LIKELY = 1
    POSSIBLE = 2


class Verdict(Word):
    """Where the bottleneck is."""

    HEALTHY = 0
    POOL_BOUND = 1
    SCHEDULER_BOUND = 2
    COMPUTE_BOUND = 3
    LEAKING = 4
    STALLED = 5
    FROZEN = 6
    UNKNOWN = 7


class Reason(Word):
    """Why a verdict is what it is. Which verdict and action belong to each is in `kvledger.reasons`."""

    LONG_REQUESTS = 0
    ONE_TENANT = 1
    RETAINED_PREFIXES = 2
    SHARED_PREFIXES = 3
    MANY_REQUESTS = 4
    PREEMPTION_THRASH = 5
    OVERLOAD = 6
    TENANT_OVERLOAD = 7
    BATCH_SLOTS = 8
    TOKEN_BUDGET = 9
    HEAD_OF_LINE = 10
    QUOTA = 11
    SLOW_ALLOCATION = 12
    COMPUTE = 13
    LEAK = 14
    NO_PROGRESS = 15
    NO_HEARTBEAT = 16
    FULL_USE = 17
    LIGHT = 18
    MISSING_SIGNALS = 19


class Action(Word):
    """The one action a verdict asks for."""

    NONE = 0
    SCALE_OUT = 1
    THROTTLE = 2
    CHANGE_BLOCK_POLICY = 3
    FIX_LEAK = 4
    LOOK_DOWNSTREAM = 5
