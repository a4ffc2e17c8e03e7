"""What stops a drill before it has begun."""

from __future__ import annotations

from kvledger_agent.errors import AgentError


class DrillImpossible(AgentError):
    """Nothing can be told: the server does not answer, or nobody knows its level. The message names the remedy."""

    exit_code = 2
