"""Where the explorer finds its agent. The command hands the address to the pages in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kvledger_agent.client import DEFAULT_URL, AgentClient, check_url

AGENT_VARIABLE = "KVLEDGER_EXPLORER_AGENT"


def agent_url(environment: Mapping[str, str] | None = None) -> str:
    """The agent's address. Raises `UsageError` for what is none."""
    return check_url((os.environ if environment is None else environment).get(AGENT_VARIABLE) or DEFAULT_URL)


def agent_client() -> AgentClient:
    """A client of that agent. Raises `UsageError`."""
    return AgentClient(agent_url())
