"""What the arguments of `kvledger engine` become, and what is refused before anything is started."""

from __future__ import annotations

import argparse

import pytest

from kvledger_engine.arguments import add_arguments
from kvledger_engine.errors import BadConfig
from kvledger_engine.options import CoreOptions, core_options


def options(*arguments: str) -> CoreOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return core_options(parser.parse_args(arguments))


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_drain_timeout_that_is_no_length_of_time_is_refused(seconds: str) -> None:
    with pytest.raises(BadConfig, match="drain_timeout"):
        options("--drain-timeout", seconds)


def test_a_drain_timeout_of_zero_cancels_at_once() -> None:
    assert options("--drain-timeout", "0").drain_timeout_seconds == 0
