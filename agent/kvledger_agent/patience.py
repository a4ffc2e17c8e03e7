"""Looking at ledgers until what they show is decided: once where all is sound, for the grace where it is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from kvledger_agent.observation import Observation

INTERVAL_SECONDS = 1.0
MOST_LOOKS = 30


def look_until_decided(look: Callable[[], Iterable[Observation]]) -> tuple[Observation, ...]:
    """The observations of the last look. Looks again, a second apart, while an engine that lives is under suspicion.

    A frozen engine decides nothing, and an engine with a very long step may take longer than the looks there are: then
    the observation is still `in_doubt`, which no caller may call sound.
    """
    for number in range(MOST_LOOKS):
        seen = tuple(look())
        suspicions = sum(observation.undecided or 0 for observation in seen if _is_open(observation))
        if not suspicions:
            break
        if number == 0:
            _say_why_it_takes_long(suspicions)
        time.sleep(INTERVAL_SECONDS)
    return seen


def _say_why_it_takes_long(suspicions: int) -> None:
    """For whoever sits at the terminal: a silent command looks like one that hangs."""
    if sys.stderr.isatty():
        most = MOST_LOOKS * INTERVAL_SECONDS
        print(f"watching {suspicions} suspicions for up to {most:g} s …", file=sys.stderr, flush=True)


def _is_open(observation: Observation) -> bool:
    return observation.in_doubt and observation.liveness.status != "frozen"
