"""Looking at ledgers until what they show is decided: once or twice where all is sound, else for the grace."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from kvledger.status import ReadStatus
from kvledger_agent.grace import SAMPLES
from kvledger_agent.observation import Observation
from kvledger_agent.verdict.rulings import SECOND_LOOK

INTERVAL_SECONDS = 1.0
SPARE_LOOKS = 5
"""More than the grace has: time does not count while an engine is between two publications."""
MOST_LOOKS = 150


def look_until_decided(look: Callable[[], Iterable[Observation]]) -> tuple[Observation, ...]:
    """The observations of the last look. Looks again, a second apart, while an engine that lives is under suspicion.

    It looks as long as the engines' grace lasts, which their slowest steps decide. A frozen engine decides nothing, and
    nobody waits for more than `MOST_LOOKS`: then the observation is still `in_doubt`, which no caller may call sound.
    """
    seen = tuple(look())
    if doubtful := [observation for observation in seen if _is_open(observation)]:
        left = looks_needed(doubtful)
        _say_why_it_takes_long(doubtful, left)
        while left > 0 and any(map(_is_open, seen)):
            time.sleep(INTERVAL_SECONDS)
            seen = tuple(look())
            left -= 1
    elif any(map(_wants_second_look, seen)):
        time.sleep(INTERVAL_SECONDS)
        seen = tuple(look())
    return seen


def looks_needed(doubtful: Sequence[Observation]) -> int:
    """How many further looks decide about engines under suspicion."""
    grace_seconds = max(observation.grace_seconds or 0.0 for observation in doubtful)
    return min(MOST_LOOKS, SAMPLES + SPARE_LOOKS + math.ceil(grace_seconds / INTERVAL_SECONDS))


def _say_why_it_takes_long(doubtful: Sequence[Observation], looks: int) -> None:
    """A silent command looks like one that hangs. On stderr, so that no document is spoilt."""
    count = sum(observation.undecided or 0 for observation in doubtful)
    names = ", ".join(observation.identity.key for observation in doubtful)
    said = (
        f"{names}: {count} suspicions, watched for up to {looks * INTERVAL_SECONDS:g} s before they are findings. "
        "A recording is judged at once: kvledger snapshot FILE --save RECORDING; kvledger snapshot RECORDING"
    )
    print(said, file=sys.stderr, flush=True)


def _wants_second_look(observation: Observation) -> bool:
    """Whether what is counted would decide the verdict: what a live engine has done in a second says so."""
    verdict = observation.verdict
    return verdict is not None and SECOND_LOOK in verdict.missing and bool(observation.liveness.up)


def _is_open(observation: Observation) -> bool:
    return observation.in_doubt and observation.liveness.status != ReadStatus.FROZEN
