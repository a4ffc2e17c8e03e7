"""The parts of `kvledger up`: what becomes of each is said once, in a line, and nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvledger_agent.up.parts import EXPLORER, MONITOR, Kind, Part, Parts
from tests.ports import free_port

AGENT = "http://127.0.0.1:9"
NEWS_SECONDS = 20.0


def kind(name: str, *arguments: str) -> Kind:
    return Kind(
        name=name,
        extra="agent",
        arguments=lambda _: list(arguments),
        urls=lambda said: {name: said["url"]},
        lines=lambda said: [f"{name} {said['url']}"],
    )


def first_news(part: Part) -> list[str]:
    deadline = time.monotonic() + NEWS_SECONDS
    while not (news := part.news()):
        assert time.monotonic() < deadline, "nothing was said"
        time.sleep(0.05)
    return news


@pytest.fixture(name="started")
def parts_that_are_ended(tmp_path: Path) -> Iterator[Callable[[Kind], Part]]:
    parts: list[Part] = []

    def start(what: Kind) -> Part:
        parts.append(Part(what, AGENT, tmp_path))
        return parts[-1]

    yield start
    for part in parts:
        if part.child is not None:
            part.child.stop(10)


def test_a_command_that_is_not_installed_is_said_once_with_the_remedy(started: Callable[[Kind], Part]) -> None:
    part = started(kind("nonsense"))
    assert part.news() == ["nonsense      not installed: pip install 'kvledger[agent]'"]
    assert part.news() == []
    assert part.urls == {}


@pytest.mark.needs("distribution")
def test_a_command_that_refuses_to_start_is_said_once_with_its_own_words(started: Callable[[Kind], Part]) -> None:
    part = started(kind("agent", "agent", "--port", "-1"))
    (line,) = first_news(part)
    assert line.startswith("agent         not started: ")
    assert "-1" in line
    assert part.news() == []


@pytest.mark.needs("distribution")
def test_a_part_that_listens_is_said_once_and_its_end_too(started: Callable[[Kind], Part], tmp_path: Path) -> None:
    port = free_port()
    part = started(kind("agent", "agent", "--json", "--directory", str(tmp_path), "--port", str(port)))
    assert first_news(part) == [f"agent http://127.0.0.1:{port}"]
    assert part.news() == []
    assert part.urls == {"agent": f"http://127.0.0.1:{port}"}

    assert part.child is not None
    part.child.stop(10)

    (line,) = part.news()
    assert line.startswith("agent         ended: ")
    assert part.news() == []
    assert part.urls == {}


def test_no_parts_have_no_news_and_their_addresses_are_unknown(tmp_path: Path) -> None:
    parts = Parts([], AGENT, tmp_path)
    assert parts.news() == []
    assert parts.urls == {"explorer": None, "prometheus": None, "alertmanager": None}
    parts.stop(1)


def test_explorer_and_monitor_are_given_the_agent_and_ports_of_their_own() -> None:
    explorer, monitor = EXPLORER.arguments(AGENT), MONITOR.arguments(AGENT)
    assert explorer[:4] == ["explorer", "--json", "--agent", AGENT]
    assert monitor[:4] == ["monitor", "--json", "--agent", AGENT]
    ports = [explorer[-1], monitor[5], monitor[7]]
    assert len(set(ports)) == 3


def test_without_alertmanager_its_line_says_why() -> None:
    urls = {"url": "http://p", "alerts": "http://p/alerts", "runbook": "http://r/", "alertmanager": None}
    said = {**urls, "missing": ["it is not installed"]}
    shown = ["alerts        http://p/alerts", "alertmanager  it is not installed", "runbook       http://r/"]
    assert MONITOR.lines(said) == shown
    assert MONITOR.urls(said) == {"prometheus": "http://p", "alertmanager": None}
