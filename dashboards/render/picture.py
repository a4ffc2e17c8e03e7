"""Draws the boards of a live run with Grafana's panel components into docs/images. Not a Grafana: no loader, no plugin.

Needs prometheus, npm and Chromium. `python -m dashboards.render.picture` in the repository's root.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from playwright.sync_api import sync_playwright

from kvledger_dashboards.boards import oncall, pool, requests
from kvledger_dashboards.build import BOARDS, GENERATED
from tests.dashboards.answers import SCRAPE_SECONDS, WINDOW
from tests.dashboards.boards import interpolated
from tests.dashboards.live import Live
from tests.dashboards.scenarios import provoke

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs/images"
WORK = Path(tempfile.gettempdir()) / "kvledger-board-picture"
SHOWN_SECONDS, AFTER_SECONDS = 180, 60
LABEL_SECONDS = 15
DRAWING_MS, SETTLING_MS = 30_000, 500
WIDTH, HEIGHT = 1600, 1000
COLORS, PICTURE_BYTES = (256, 192, 128, 96, 64), 350_000
CHOSEN = {uid: ["cell"] for uid in (oncall.UID, pool.UID, requests.UID)}
"""Models that the reader of a board chose: without the page of another engine, which knows little of its blocks."""
FONTS = {"400": "Inter-Regular", "500": "Inter-Medium"}
"""Weight to the name under which Grafana's styles look for the font."""
SWITCHES = ["--no-sandbox", "--disable-dev-shm-usage"]


def collected(boards: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What a real Prometheus says to each query of the boards while engines are in trouble; times in seconds."""
    with Live(directory=Path(tempfile.mkdtemp(prefix="kvledger-picture-", dir="/dev/shm"))) as live:
        provoke(live)
        os.kill(live.engines["again"]["core_pid"], signal.SIGKILL)
        time.sleep(AFTER_SECONDS)
        time.sleep((LABEL_SECONDS / 2 - time.time()) % LABEL_SECONDS)  # a label at the very edge would be cut off
        until = float(int(time.time()) - SCRAPE_SECONDS)
        begin = max(until - SHOWN_SECONDS, live.began)
        return {
            "from": begin,
            "to": until,
            "step": SCRAPE_SECONDS,
            "boards": {board["uid"]: _shown(live, board, begin, until) for board in boards},
        }


def _shown(live: Live, board: dict[str, Any], begin: float, until: float) -> dict[str, Any]:
    """Of one board: the models chosen, the answer to each query, and what is marked when in which colour."""
    models = CHOSEN.get(board["uid"], [])
    return {
        "models": models,
        "answers": {
            target["expr"]: _answer(live, target, models, begin, until)
            for panel in board["panels"]
            for target in panel.get("targets", [])
        },
        "marks": [
            {"color": each["iconColor"], "start": start, "end": end}
            for each in board["annotations"]["list"]
            for series in _answer(live, each, models, begin, until)
            for start, end in _runs([at for at, _ in series["points"]])
        ],
    }


def _answer(live: Live, asked: dict[str, Any], models: list[str], begin: float, until: float) -> list[dict[str, Any]]:
    """Labels and points (seconds, value) of each series."""
    expr = interpolated(
        asked["expr"],
        job=[],
        instance=[],
        engine=[],
        model=models,
        scrape_seconds=SCRAPE_SECONDS,
        recorded_window=WINDOW,
    )
    found = live.points(expr, until if asked.get("instant") else begin, until)
    return [{"labels": dict(labels), "points": points} for labels, points in found]


def _runs(times: list[float]) -> list[list[float]]:
    """First and last of the times that follow each other without a gap: Grafana marks those as one."""
    runs: list[list[float]] = []
    for at in times:
        if runs and at - runs[-1][1] <= SCRAPE_SECONDS:
            runs[-1][1] = at
        else:
            runs.append([at, at])
    return runs


def bundle(work: Path) -> None:
    """Everything the page needs besides data and board, in `work`; the packages are installed once."""
    for name in ("package.json", "index.html", "app.jsx"):
        shutil.copy(HERE / name, work)
    modules = work / "node_modules"
    if not modules.exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=work, check=True)
    shutil.copytree(modules / "@grafana/ui/dist/public", work / "public/build", dirs_exist_ok=True)
    (work / "public/fonts/inter").mkdir(parents=True, exist_ok=True)
    for weight, name in FONTS.items():
        font = modules / f"@fontsource/inter/files/inter-latin-{weight}-normal.woff2"
        shutil.copy(font, work / f"public/fonts/inter/{name}.woff2")
    options = [
        "--bundle",
        "--minify",
        "--jsx=automatic",
        "--loader:.ttf=empty",
        '--define:process.env.NODE_ENV="production"',
    ]
    subprocess.run([modules / ".bin/esbuild", "app.jsx", "--outfile=app.js", *options], cwd=work, check=True)


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def served(work: Path) -> Iterator[str]:
    """The address at which the page is served, on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(work)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def shoot(url: str, picture: Path) -> list[str]:
    """Write the picture; the errors that the page reported meanwhile."""
    with sync_playwright() as machine:
        browser = machine.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        try:
            page.wait_for_selector("canvas", timeout=DRAWING_MS)
            page.wait_for_load_state("networkidle", timeout=DRAWING_MS)
            # A table has no rows where nobody looks: the whole board has to be in sight.
            page.set_viewport_size({"width": WIDTH, "height": page.evaluate("document.body.scrollHeight")})
            page.wait_for_timeout(SETTLING_MS)
        except PlaywrightTimeout:
            errors.append(f"nothing is drawn after {DRAWING_MS} ms")
        page.screenshot(path=picture, full_page=True)
        browser.close()
    shrink(picture)
    return errors


def shrink(picture: Path) -> None:
    """Replace it by one with as many colours as its size allows: it is kept in the repository."""
    with Image.open(picture) as opened:
        drawn = opened.convert("RGB")
    for colors in COLORS:
        few = drawn.quantize(colors, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(picture, optimize=True)
        if picture.stat().st_size < PICTURE_BYTES:
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every picture was drawn without an error."""
    parser = argparse.ArgumentParser(prog="dashboards.render.picture", description=__doc__)
    parser.add_argument(
        "--work", type=Path, default=WORK, help="where packages, data and page go (default: %(default)s)"
    )
    parser.add_argument("--into", type=Path, default=PICTURES, help="where the pictures go (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="the boards as they are now with the last run's data")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    boards = {uid: json.loads((GENERATED / f"{uid}.json").read_text()) for uid in BOARDS}
    if not chosen.again:
        (chosen.work / "data.js").write_text(f"window.DATA = {json.dumps(collected(boards.values()))};\n")
    bundle(chosen.work)
    failed = False
    with served(chosen.work) as url:
        for uid, board in boards.items():
            (chosen.work / "board.js").write_text(f"window.BOARD = {json.dumps(board)};\n")
            for line in shoot(url, chosen.into / f"board-{uid.removeprefix('kvledger-')}.png"):
                failed = True
                print(f"{uid}: {line}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
