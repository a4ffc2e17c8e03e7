"""Draws the explorer's four pages of a live run into docs/images: one engine leaks, another is short of blocks.

Needs Chromium. `python -m dashboards.render.explorer` in the repository's root.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from playwright.sync_api import sync_playwright

from kvledger_agent.up.child import Child
from tests.dashboards.live import ENVIRONMENT, READY_SECONDS, STOP_SECONDS
from tests.explorer.settled import SETTLED

PICTURES = Path(__file__).parents[2] / "docs/images"
SWITCHES = ["--no-sandbox", "--disable-dev-shm-usage"]
WIDTH = 1400
PAGES = MappingProxyType({"overview": 1230, "block_map": 900, "requests": 1680, "leaks": 900})
"""Path of each page in its address, and the height of its picture."""
POOL = (
    "--blocks 1600 --max-num-seqs 96 --max-num-batched-tokens 512 --max-waiting 60 --max-model-len 4096 "
    "--step-time base=20ms,seq=1ms"
)
ENGINES = MappingProxyType({"leaking": f"{POOL} --fault skipped_free", "pressed": POOL})
LOAD = "--profile storm --rate 20 --length-scale 1.6 --for 120 --drain 1"
SHOWN_SECONDS, DRAWING_MS, LIVE_MS = 25.0, 60_000, 6_000


def main(arguments: Sequence[str] | None = None) -> int:
    """0 once all four are drawn."""
    parser = argparse.ArgumentParser(prog="dashboards.render.explorer", description=__doc__)
    parser.add_argument("--into", type=Path, default=PICTURES, help="where the pictures go (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    with ExitStack() as running:
        place = Path(tempfile.mkdtemp(prefix="kvledger-picture-", dir="/dev/shm"))
        running.callback(shutil.rmtree, place, ignore_errors=True)
        agent = scene(running, place)
        explorer = started(running, place, "explorer", "--agent", agent, "--port", "0")
        wait_until_served(explorer["health"])
        wait_until_told(agent)
        shoot(explorer["url"], chosen.into)
    return 0


def scene(running: ExitStack, place: Path) -> str:
    """Both engines under load, and the address of the agent that watches them."""
    places = ("--directory", str(place / "ledgers"))
    (place / "ledgers").mkdir()
    for name, flags in ENGINES.items():
        engine = started(
            running, place, "engine", *places, "--name", name, "--model", "cell", "--port", "0", *flags.split()
        )
        running.callback(child(place, "load", "--url", engine["url"], *LOAD.split()).stop, STOP_SECONDS)
    watching = ("--interval", "0.5", "--verdict-window", "20", "--port", "0")
    return str(started(running, place, "agent", *places, *watching)["url"])


def started(running: ExitStack, place: Path, command: str, *arguments: str) -> dict[str, Any]:
    """Start a command that ends with the run; what its first line says."""
    process = child(place, command, *arguments)
    running.callback(process.stop, STOP_SECONDS)
    return process.first_line(READY_SECONDS)


def child(place: Path, command: str, *arguments: str) -> Child:
    """A command of ours, which logs beside its ledgers."""
    log = place / f"{command}.log"
    return Child(command, [command, "--json", *arguments], log=log, environment=ENVIRONMENT)


def wait_until_served(health: str) -> None:
    """Until the explorer answers."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(health, timeout=2).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def wait_until_told(agent: str) -> None:
    """Until the agent has judged both engines for a while, the leak among them."""
    deadline, shown = time.monotonic() + READY_SECONDS, 0.0
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{agent}/v1/engines", timeout=5) as answer:
            told = {each["engine"]: each["verdict"]["verdict"] for each in json.load(answer)["engines"]}
        if told.get("leaking") == "leaking" and told.get("pressed") not in (None, "healthy", "unknown"):
            shown = shown or time.monotonic()
            if time.monotonic() - shown > SHOWN_SECONDS:
                return
        time.sleep(0.5)
    raise AssertionError(f"not within {READY_SECONDS:.0f} s: {told}")


def shoot(url: str, into: Path) -> None:
    """Every page, with the leaking engine chosen."""
    with sync_playwright() as machine:
        browser = machine.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES)
        for name, height in PAGES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": height})
            path = "" if name == "overview" else name
            page.goto(f"{url}/{path}?engine=leaking:0")
            page.wait_for_selector("h1", timeout=DRAWING_MS)
            page.wait_for_timeout(LIVE_MS)
            page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=DRAWING_MS)
            page.wait_for_function(SETTLED, timeout=DRAWING_MS)
            page.screenshot(path=into / f"explorer-{name.replace('_', '-')}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
