"""The explorer's pages without a browser: Streamlit's own test runner, and what it drew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

import kvledger_dashboards.explorer

SCRIPT = Path(kvledger_dashboards.explorer.__file__).with_name("streamlit_app.py")
PAGES = ("overview", "block_map", "requests", "leaks")


def opened(page: str, engine: str | None = None, *, address: Mapping[str, list[str]] | None = None) -> AppTest:
    """A page, run once, for one engine, or with what its address asks for; it has raised nothing."""
    app = AppTest.from_file(str(SCRIPT), default_timeout=60)
    if engine is not None:
        app.session_state["engine"] = engine
    for key, values in (address or {}).items():
        app.query_params[key] = values
    app.run()
    if page != "overview":
        app.switch_page(f"app_pages/{page}.py").run()
    assert not app.exception, app.exception
    return app


def text(app: AppTest) -> str:
    """Everything a page says in words."""
    kinds = (app.title, app.subheader, app.markdown, app.caption, app.error, app.warning, app.info, app.success)
    said = [str(element.value) for kind in kinds for element in kind]
    said += [f"{metric.label} {metric.value}" for metric in app.metric]
    return "\n".join(said).replace("\\", "")


def figure(app: AppTest, number: int = 0) -> dict[str, Any]:
    """A plotly figure as the browser gets it."""
    return dict(json.loads(app.get("plotly_chart")[number].proto.spec))


def legend(app: AppTest, number: int = 0) -> dict[str, int]:
    """The numbers in a figure's legend, by name."""
    names = [trace["name"] for trace in figure(app, number)["data"] if trace.get("name")]
    return {name.rpartition(" ")[0]: int(name.rpartition(" ")[2].replace(",", "")) for name in names}
