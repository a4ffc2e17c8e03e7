"""Which optional extra brings a missing package, read from the distribution's own metadata. Installs nothing."""

from __future__ import annotations

import re
from importlib import metadata

from kvledger_agent.errors import MissingExtra

DISTRIBUTION = "kvledger"
_REQUIREMENT = re.compile(r"^\s*(?P<name>[A-Za-z0-9._-]+).*;.*extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")
_OURS = ("kvledger", "kvledger_agent", "kvledger_engine", "kvledger_dashboards", "kvledger_alerts")


def missing_extra(command: str, error: ModuleNotFoundError) -> MissingExtra | None:
    """The error to show when `command` could not be imported; None if a module of our own is what is missing."""
    module = (error.name or "").partition(".")[0]
    if not module or module in _OURS:
        return None
    extra = extra_of(module) or "all"
    return MissingExtra(f"`{command}` needs {module}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'")


def extra_of(module: str, requirements: list[str] | None = None) -> str | None:
    """The extra one of whose requirements provides the top-level `module`; None if no extra is known to.

    Args:
        module: a top-level import name.
        requirements: `Requires-Dist` lines; by default those of the installed distribution.
    """
    wanted = _normal(module)
    for line in _requirements() if requirements is None else requirements:
        match = _REQUIREMENT.match(line)
        if match is None or match["extra"] == "all":
            continue
        name = _normal(match["name"])
        if name == wanted or name.startswith(f"{wanted}-") or name == f"py{wanted}":
            return match["extra"]
    return None


def _requirements() -> list[str]:
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
