"""The agent's settings: precedence, environment, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvledger_agent.config import DEFAULT_DIRECTORY, AgentConfig, resolve
from kvledger_agent.errors import UsageError


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    environ = {"KVLEDGER_DIR": "/run/ledgers", "KVLEDGER_AGENT_PORT": "1234", "KVLEDGER_AGENT_HOST": "::1"}

    config = resolve({"port": 99, "host": None}, environ)

    assert config == AgentConfig(directory=Path("/run/ledgers"), port=99, host="::1")


def test_without_anything_said_the_agent_listens_on_loopback_and_samples_once_a_second() -> None:
    config = resolve({}, {})

    assert (config.directory, config.host, config.interval_seconds) == (DEFAULT_DIRECTORY, "127.0.0.1", 1.0)
    assert config.stale_after_seconds == 5.0
    assert config.price_per_hour is None


def test_flags_of_other_purposes_are_ignored() -> None:
    assert resolve({"json": True, "command": object()}, {}) == AgentConfig(directory=DEFAULT_DIRECTORY)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"KVLEDGER_AGENT_PROT": "1"}, "KVLEDGER_AGENT_PROT"),
        ({"KVLEDGER_AGENT_PORT": "http"}, "http"),
        ({"KVLEDGER_AGENT_PORT": "70000"}, "70000"),
        ({"KVLEDGER_AGENT_INTERVAL_SECONDS": "0"}, "interval_seconds"),
        ({"KVLEDGER_AGENT_INTERVAL_SECONDS": "nan"}, "interval_seconds"),
        ({"KVLEDGER_AGENT_INTERVAL_SECONDS": "9"}, "stale_after_seconds"),
        ({"KVLEDGER_AGENT_PRICE_PER_HOUR": "-1"}, "price_per_hour"),
        ({"KVLEDGER_AGENT_DIRECTORY": "/x"}, "KVLEDGER_DIR"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        resolve({}, environ)
