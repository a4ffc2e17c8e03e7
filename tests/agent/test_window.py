"""Growth over the last minute of a clock that only the caller moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.window import Window


def test_growth_is_unknown_before_ten_seconds_have_been_seen() -> None:
    window = Window()
    for second in range(10):
        window.add(second * NS_PER_SECOND, second)
        assert window.growth_per_second() is None

    window.add(10 * NS_PER_SECOND, 10)

    assert window.growth_per_second() == 1.0


def test_only_the_last_minute_counts() -> None:
    window = Window()
    for second in range(200):
        window.add(second * NS_PER_SECOND, 1000.0 if second < 100 else 0.0)

    assert window.growth_per_second() == 0.0


def test_a_clock_that_goes_back_starts_anew() -> None:
    window = Window()
    window.add(100 * NS_PER_SECOND, 50)
    window.add(5 * NS_PER_SECOND, 1)
    window.add(16 * NS_PER_SECOND, 12)

    assert window.growth_per_second() == 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e6)), min_size=2, max_size=80))
def test_growth_is_the_difference_over_at_most_a_minute_and_a_step(steps: list[tuple[int, float]]) -> None:
    window, points, now = Window(), [], 0
    for seconds, value in steps:
        now += seconds * NS_PER_SECOND
        window.add(now, value)
        points.append((now, value))

    growth = window.growth_per_second()

    if growth is not None:
        last_ns, last = points[-1]
        slopes = [(last - v) / ((last_ns - t) / NS_PER_SECOND) for t, v in points if last_ns - t >= 10 * NS_PER_SECOND]
        assert any(abs(growth - slope) <= 1e-6 * max(1.0, abs(slope)) for slope in slopes), (growth, slopes)
