"""What `kvledger up` has beside engine and agent, where it can be had: explorer and monitor. Nobody waits for them.

A part that cannot be had, or ends, is said in one line; it is no reason to end a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kvledger_agent.cli import GROUP
from kvledger_agent.extras import DISTRIBUTION
from kvledger_agent.up.child import Child, ChildFailed
from kvledger_agent.up.page import answer
from kvledger_agent.up.ports import usable_port
from kvledger_agent.up.settings import ALERTMANAGER_PORT, EXPLORER_PORT, PROMETHEUS_PORT, RUNBOOK_PORT

NICENESS = 5
"""Below engine and agent: what is looked at must not slow down what is looked into."""
HEALTH_SECONDS = 0.5
LABEL_WIDTH = 14


def labelled(label: str, text: str) -> str:
    """A line of what `up` says."""
    return f"{label:<{LABEL_WIDTH}}{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One sort of part: its command's name and extra, its arguments for an agent's address, and what it announces.

    `urls` and `lines` take the JSON object that the command prints: addresses by name, and the lines that show them.
    """

    name: str
    extra: str
    arguments: Callable[[str], list[str]]
    urls: Callable[[Mapping[str, Any]], dict[str, str | None]]
    lines: Callable[[Mapping[str, Any]], list[str]]


def _explorer_arguments(agent_url: str) -> list[str]:
    return ["explorer", "--json", "--agent", agent_url, "--port", str(usable_port(EXPLORER_PORT))]


def _monitor_arguments(agent_url: str) -> list[str]:
    ports = {"--port": PROMETHEUS_PORT, "--alertmanager-port": ALERTMANAGER_PORT, "--runbook-port": RUNBOOK_PORT}
    flags = (part for flag, port in ports.items() for part in (flag, str(usable_port(port))))
    return ["monitor", "--json", "--agent", agent_url, *flags]


def _monitor_lines(said: Mapping[str, Any]) -> list[str]:
    told = said["alertmanager"] or "; ".join(said["missing"])
    return [labelled("alerts", said["alerts"]), labelled("alertmanager", told), labelled("runbook", said["runbook"])]


EXPLORER = Kind(
    name="explorer",
    extra="explorer",
    arguments=_explorer_arguments,
    urls=lambda said: {"explorer": said["url"]},
    lines=lambda said: [labelled("explorer", said["url"])],
)
MONITOR = Kind(
    name="monitor",
    extra="alerts",
    arguments=_monitor_arguments,
    urls=lambda said: {"prometheus": said["url"], "alertmanager": said["alertmanager"]},
    lines=_monitor_lines,
)
URLS = ("explorer", "prometheus", "alertmanager")


class Part:
    """One part. `news` says what has become of it since the last look, without waiting for anything."""

    def __init__(self, kind: Kind, agent_url: str, directory: Path) -> None:
        self._kind = kind
        self._said: Mapping[str, Any] | None = None
        self._is_ready = self._is_over = False
        self.child: Child | None = None
        if metadata.entry_points(group=GROUP, name=kind.name):
            log = directory / f"{kind.name}.log"
            self.child = Child(kind.name, kind.arguments(agent_url), log=log, niceness=NICENESS)

    @property
    def urls(self) -> dict[str, str | None]:
        """Its addresses by name; none unless it is ready."""
        return self._kind.urls(self._said) if self._said is not None and self._is_ready else {}

    def news(self) -> list[str]:
        """The lines that there are to print."""
        if self._is_over:
            return []
        if self.child is None:
            return self._end(f"not installed: pip install '{DISTRIBUTION}[{self._kind.extra}]'")
        try:
            return self._look(self.child)
        except ChildFailed:
            return self._end(f"{'ended' if self._is_ready else 'not started'}: {self.child.last_word}")

    def _look(self, child: Child) -> list[str]:
        if self._is_ready:
            child.require_running()
            return []
        self._said = self._said or child.line_if_any()
        if self._said is None or not _is_healthy(self._said):
            child.require_running()
            return []
        self._is_ready = True
        return self._kind.lines(self._said)

    def _end(self, why: str) -> list[str]:
        self._is_over, self._said = True, None
        return [labelled(self._kind.name, why)]


def _is_healthy(said: Mapping[str, Any]) -> bool:
    """What names a health page says its line before it listens; what names none says it when it is ready."""
    return "health" not in said or answer(said["health"], timeout_seconds=HEALTH_SECONDS) is not None


class Parts:
    """All parts of a run."""

    def __init__(self, kinds: Iterable[Kind], agent_url: str, directory: Path) -> None:
        self._parts = [Part(kind, agent_url, directory) for kind in kinds]

    def news(self) -> list[str]:
        """What there is to print since the last call."""
        return [line for part in self._parts for line in part.news()]

    @property
    def urls(self) -> dict[str, str | None]:
        """Addresses by the names in `URLS`, None for what does not listen."""
        found: dict[str, str | None] = dict.fromkeys(URLS)
        for part in self._parts:
            found |= part.urls
        return found

    def stop(self, timeout_seconds: float) -> None:
        """End them all at once, then wait for each."""
        children = [part.child for part in self._parts if part.child is not None]
        for child in children:
            child.ask()
        for child in children:
            child.stop(timeout_seconds)
