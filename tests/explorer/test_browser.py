"""The explorer in a real browser: every page draws, refreshes by itself, and asks this machine alone.

`KVLEDGER_SCREENSHOTS=DIR` keeps a picture of every page; those in docs/images come from here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvledger_agent.client import AgentClient
from tests.children import memory_directory
from tests.explorer.conftest import agent, child, engine, until
from tests.explorer.settled import SETTLED

playwright = pytest.importorskip("playwright.sync_api", reason="needs chromium: playwright is not installed")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    *(pytest.mark.needs(name) for name in ("tmpfs", "streamlit", "chromium")),
]
WAIT_MS, LIST_MS, CHOICE_SECONDS = 60_000, 15_000, 120.0
MISPLACED = """() => {
    const found = [], shown = (query) => [...document.querySelectorAll(query)].filter((e) => e.offsetParent !== null)
    const main = document.querySelector('[data-testid=stMain]')
    if (main.scrollWidth > main.clientWidth + 1) found.push('the page is wider than its window')
    for (const e of shown('[data-testid=stMetric] *, .kvledger-legend, .kvledger-legend *'))
        if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')
            found.push(`cut: ${e.innerText}`)
    const parts = shown(
        '.kvledger-legend, .js-plotly-plot, [data-testid=stMetric], [data-testid=stDataFrame], ' +
        '[data-testid=stCaptionContainer], h1, h3, [data-testid=stMarkdownContainer] > p, [data-testid=stBadge]')
    const name = (e) => `${e.className || e.tagName} ${e.innerText.slice(0, 40)}`
    const boxes = parts.map((e) => [e, e.getBoundingClientRect()]).filter(([e, r]) => r.width && r.height)
    for (const [i, [a, p]] of boxes.entries())
        for (const [b, q] of boxes.slice(i + 1))
            if (!a.contains(b) && !b.contains(a) && Math.min(p.right, q.right) - Math.max(p.left, q.left) > 2 &&
                Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 2)
                found.push(`${name(a)} lies on ${name(b)}`)
    for (const plot of document.querySelectorAll('.js-plotly-plot'))
        for (const text of plot.querySelectorAll('text')) {
            const p = plot.getBoundingClientRect(), q = text.getBoundingClientRect()
            if (q.width && (q.left < p.left - 2 || q.right > p.right + 2)) found.push(`cut: ${text.textContent}`)
        }
    return found
}"""
"""Whatever is cut, is wider than the window, or lies on something else."""
WIDTHS = (1000, 1400, 1900)
SWITCHES = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]


class Visit:
    """One browser at one explorer. Whatever it asks for over the network is in `asked`; its errors in `errors`."""

    def __init__(self, browser: Any, url: str, *, dark: bool = False) -> None:
        self.url, self.asked, self.errors = url, [], []  # type: tuple[str, list[str], list[str]]
        scheme = "dark" if dark else "light"
        self.page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, path: str, engine: str | None = None) -> Any:
        """Go to a page, and choose an engine."""
        self.page.goto(f"{self.url}/{path}", timeout=WAIT_MS)
        if engine is not None:
            self.page.get_by_role("combobox").first.wait_for(timeout=WAIT_MS)
            until(lambda: self._chooses(engine), f"{engine} to be chosen", CHOICE_SECONDS)
        return self.page

    def _chooses(self, engine: str) -> bool:
        """Open the list and take an engine from it; a page that is still being built may close the list at once."""
        try:
            self.page.get_by_role("combobox").first.click(timeout=LIST_MS)
            self.page.get_by_role("option", name=engine).click(timeout=LIST_MS)
        except playwright.TimeoutError:
            return False
        return True

    def sees(self, text: str) -> None:
        """Wait until a text is on the page."""
        self.page.get_by_text(re.compile(text)).first.wait_for(timeout=WAIT_MS)

    def draws(self, figures: int = 1) -> None:
        """Wait until so many figures are drawn."""
        self.page.locator(".js-plotly-plot:has(.main-svg)").nth(figures - 1).wait_for(timeout=WAIT_MS)

    def keep(self, name: str, height: int = 900, width: int = 1400) -> None:
        """A picture, if somebody wants it, of a page that has settled, with the pointer on nothing."""
        folder = os.environ.get("KVLEDGER_SCREENSHOTS")
        if folder:
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.mouse.move(5, 5)
            self.page.wait_for_timeout(2500)
            self.page.wait_for_function(SETTLED, timeout=WAIT_MS)
            self.page.screenshot(path=Path(folder) / f"explorer-{name}.png")

    def foreign(self) -> list[str]:
        """What it asked of another machine."""
        own = ("127.0.0.1", "localhost", "")
        return [url for url in self.asked if urlsplit(url).hostname not in own and urlsplit(url).scheme != "data"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as machine:
        launched = machine.chromium.launch(executable_path="/usr/bin/chromium", args=SWITCHES)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def explorer(fleet: AgentClient) -> Iterator[str]:
    """The address of an explorer of the fleet's agent."""
    with child("tests.explorer.children", "explorer", "--port", 0, "--json", "--agent", fleet.url) as (_, line):
        yield str(json.loads(line)["url"])


@pytest.fixture
def visit(browser: Any, explorer: str) -> Iterator[Visit]:
    """A visit that must end without an error and without a question to another machine."""
    visiting = Visit(browser, explorer)
    until(lambda: connects(visiting), "the explorer")
    yield visiting
    assert visiting.asked
    assert visiting.foreign() == []
    assert visiting.errors == []
    assert visiting.page.get_by_test_id("stException").count() == 0
    visiting.page.close()


def connects(visiting: Visit) -> bool:
    """Whether the server listens yet."""
    try:
        return bool(visiting.page.request.get(f"{visiting.url}/_stcore/health").ok)
    except playwright.Error:
        return False


def test_the_overview_shows_verdict_pool_and_waits(visit: Visit) -> None:
    visit.open("")
    visit.sees("leaking:0")
    visit.sees("Fix the leak")
    visit.draws(figures=2)
    visit.keep("overview")


def test_the_map_refreshes_by_itself_and_names_a_block_under_the_pointer(visit: Visit) -> None:
    page = visit.open("block_map", "leaking:0")
    visit.draws()
    publication = page.get_by_text(re.compile("^Publication")).first
    before = publication.inner_text(timeout=WAIT_MS)
    until(lambda: publication.inner_text(timeout=WAIT_MS) != before, "a refresh")
    until(lambda: named_under_pointer(page), "a block's name")
    visit.keep("block-map")


def named_under_pointer(page: Any) -> bool:
    """Whether a block is named once the pointer has moved over the map; a refresh takes the name away again."""
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    if box is None:
        return False
    for step in range(4):
        page.mouse.move(box["x"] + box["width"] / 2 + 20 * step, box["y"] + box["height"] / 2)
        page.wait_for_timeout(100)
    return bool(page.locator(".hoverlayer").get_by_text(re.compile("block [0-9,]+")).count())


def test_requests_show_their_waits_and_a_tenants_name_loads_nothing(visit: Visit) -> None:
    visit.open("requests", "pressed:0")
    visit.sees("Waits by cause")
    visit.draws()
    for table in range(2):
        visit.page.get_by_test_id("stDataFrame").nth(table).wait_for(timeout=WAIT_MS)
    visit.keep("requests", height=1180)


def test_leaks_show_their_evidence(visit: Visit) -> None:
    visit.open("leaks", "leaking:0")
    visit.sees("Excess reference")
    visit.sees("Owner:|Candidates:")
    visit.page.get_by_test_id("stDataFrame").first.wait_for(timeout=WAIT_MS)
    visit.keep("leaks")


def test_without_a_finding_the_page_says_what_was_checked(visit: Visit) -> None:
    visit.open("leaks", "pressed:0")
    visit.sees("No finding")
    visit.sees("publication")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("path", "awaited", "height"),
    [
        ("", "leaking:0", 1300),
        ("block_map", "Publication", 900),
        ("requests", "Live requests", 1500),
        ("leaks", "Excess reference", 1000),
    ],
)
def test_at_no_width_is_anything_cut_or_upon_another(
    browser: Any, explorer: str, path: str, awaited: str, height: int, dark: bool
) -> None:
    visiting = Visit(browser, explorer, dark=dark)
    until(lambda: connects(visiting), "the explorer")
    page = visiting.page
    page.goto(f"{explorer}/{path}?engine=leaking:0", timeout=WAIT_MS)
    visiting.sees(awaited)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(f"({MISPLACED})().length === 0", timeout=WAIT_MS)
        visiting.keep(f"{path or 'overview'}-{width}-{'dark' if dark else 'light'}", height, width)
    page.close()


def test_a_hundred_thousand_blocks_are_drawn_and_refreshed(browser: Any) -> None:
    with memory_directory() as directory, engine("vast", directory), agent(directory) as client:
        arguments = ("explorer", "--port", 0, "--json", "--agent", client.url)
        with child("tests.explorer.children", *arguments) as (_, line):
            visiting = Visit(browser, json.loads(line)["url"], dark=True)
            until(lambda: connects(visiting), "the explorer")
            page = visiting.open("block_map")
            visiting.draws()
            visiting.sees("of 100,000 blocks|free 9")
            publication = page.get_by_text(re.compile("^Publication")).first
            before = publication.inner_text(timeout=WAIT_MS)
            until(lambda: publication.inner_text(timeout=WAIT_MS) != before, "a refresh")
            visiting.keep("block-map-100000")
            assert visiting.foreign() == []
            page.close()
