"""A process that answers windows: twice the seed, and none for 13."""

from __future__ import annotations

from bench.asked import answering


def window(seed: int) -> float:
    """The figure of a seed."""
    if seed == 13:
        raise SystemExit("no window for 13")
    return 2.0 * seed


if __name__ == "__main__":
    answering("twice the seed", window)
