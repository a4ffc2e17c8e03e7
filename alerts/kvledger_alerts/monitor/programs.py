"""Where Prometheus and Alertmanager are on this machine, and what to install where they are not. Starts nothing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from kvledger_agent.errors import AgentError


class ProgramMissing(AgentError):
    """A program that was asked for is not on the PATH; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, under the names that it has in distributions, and Debian's package of it."""

    title: str
    names: tuple[str, ...]
    package: str

    def find(self) -> str | None:
        """Its path; None when it is not on the PATH."""
        return next((found for found in map(shutil.which, self.names) if found), None)

    @property
    def missing(self) -> str:
        """What to do where it is not found."""
        return f"{self.title} is not installed: apt-get install {self.package}"

    def require(self) -> str:
        """Its path. Raises `ProgramMissing`."""
        found = self.find()
        if found is None:
            raise ProgramMissing(self.missing)
        return found


PROMETHEUS = Program("Prometheus", ("prometheus",), "prometheus")
ALERTMANAGER = Program("Alertmanager", ("prometheus-alertmanager", "alertmanager"), "prometheus-alertmanager")
