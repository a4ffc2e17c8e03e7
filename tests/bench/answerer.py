"""A measurement in a process of its own, for the tests of both ends: `python -m tests.bench.answerer`."""

from __future__ import annotations

import os

import numpy as np

from bench.answers import Answer, answering
from bench.effort import Effort


def measure(effort: Effort) -> Answer:
    """Figures that say how it was asked. Prints on standard output, as libraries do."""
    print("something that a library says")
    if os.environ.get("ANSWERER_FAILS"):
        raise ValueError("the peer is broken")
    rounds = [float(number) for number in effort.rounds(full=5, quick=3)]
    seed = os.environ["PYTHONHASHSEED"]
    return Answer({"rounds": np.array(rounds)}, (f"whole {effort.whole}", f"seed {seed}"))


if __name__ == "__main__":
    answering(measure)
