"""The explorer's figures, in plotly: the pool bar, the block map, waits by cause. Draws what the views computed.

None has a legend of its own: `shell.draw` puts it above.
"""

from __future__ import annotations

import plotly.graph_objects as go

from kvledger_dashboards.explorer.views.blockmap import KINDS, LABELS, BlockMap
from kvledger_dashboards.explorer.views.overview import PoolBar
from kvledger_dashboards.explorer.views.palette import CAUSES, palette
from kvledger_dashboards.explorer.views.requests import WaitBars
from kvledger_dashboards.explorer.views.text import count, spaced

CONFIG = {"displayModeBar": False, "displaylogo": False}
MAP_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "toImage"], "scrollZoom": True}
CELL_GAP_LIMIT_BLOCKS = 8_000


def pool_figure(bar: PoolBar, *, dark: bool) -> go.Figure:
    """Active, cached and free up to the capacity, watermarks as lines, and the logical blocks as a bar below."""
    colours, figure = palette(dark=dark), go.Figure()
    parts = (("active", bar.active_blocks), ("cached", bar.cached_blocks), ("free", bar.free_blocks))
    for name, blocks in parts:
        if blocks is not None:
            _bar(figure, "pool", name, blocks, colours[name])
    if bar.logical_blocks is not None:
        _bar(figure, "logical", "logical", bar.logical_blocks, colours["logical"])
    _watermark(figure, bar.alert_blocks, "alert", "dash", colours["line"])
    if bar.admission_blocks != bar.capacity_blocks:
        _watermark(figure, bar.admission_blocks, "admission", "dot", colours["line"])
    figure.update_layout(
        barmode="stack",
        height=110,
        margin={"l": 60, "r": 16, "t": 4, "b": 24},
        showlegend=False,
        xaxis={"range": [0, _reach(bar)], "showgrid": False, "zeroline": False, "tickformat": ",d", "fixedrange": True},
        yaxis={"categoryorder": "array", "categoryarray": ["logical", "pool"], "fixedrange": True},
        bargap=0.25,
        uirevision="pool",
    )
    return figure


def _bar(figure: go.Figure, row: str, name: str, blocks: float, colour: str) -> None:
    figure.add_bar(
        y=[row],
        x=[blocks],
        name=f"{name} {count(blocks)}",
        orientation="h",
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate=f"{name}: %{{x:,d}} blocks<extra></extra>",
    )


def _watermark(figure: go.Figure, blocks: float | None, name: str, dash: str, colour: str) -> None:
    if blocks is None:
        return
    line = {"color": colour, "dash": dash, "width": 2}
    figure.add_shape(type="line", x0=blocks, x1=blocks, y0=0, y1=1, yref="paper", line=line)
    figure.add_scatter(x=[None], y=[None], mode="lines", name=f"{name} watermark {count(blocks)}", line=line)


def _reach(bar: PoolBar) -> float:
    """Sharing makes more logical blocks than the pool has blocks: the axis then reaches further than the capacity."""
    return max(bar.capacity_blocks or 0, bar.logical_blocks or 0, 1) * 1.01


def map_figure(blocks: BlockMap, *, dark: bool) -> go.Figure:
    """One cell per block. Every kind has its name in the legend, with its number of blocks, even if that is 0."""
    colours = palette(dark=dark)
    shades = [colours[kind] for kind in KINDS] + [colours["outside"]]
    rows, columns = blocks.cells.shape
    gap = 1 if blocks.cells.size <= CELL_GAP_LIMIT_BLOCKS else 0
    figure = go.Figure(
        go.Heatmap(
            z=blocks.cells,
            y0=0,
            dy=1,
            zmin=-0.5,
            zmax=len(shades) - 0.5,
            colorscale=_steps(shades),
            showscale=False,
            xgap=gap,
            ygap=gap,
            customdata=blocks.details,
            hovertemplate=_hover(blocks),
        )
    )
    for kind in KINDS:
        name = f"{LABELS[kind]} {blocks.counts[kind]:,}"
        marker = {"symbol": "square", "size": 12, "color": colours[kind]}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, hoverinfo="skip")
    hidden: dict[str, object] = {"showgrid": False, "zeroline": False, "showline": False, "ticks": ""}
    figure.update_layout(
        height=max(160, min(730, 30 + round(1000 * rows / columns))),
        margin={"l": 64, "r": 8, "t": 8, "b": 8},
        showlegend=False,
        xaxis=hidden | {"showticklabels": False, "range": [-0.5, columns - 0.5]},
        yaxis=hidden | {"range": [rows - 0.5, -0.5]} | _row_labels(rows, columns),
        uirevision="map",
    )
    return figure


def _steps(shades: list[str]) -> list[tuple[float, str]]:
    """A colour scale of steps: number `n` of the cells has exactly the colour `shades[n]`."""
    width = 1 / len(shades)
    return [(edge, shade) for n, shade in enumerate(shades) for edge in (n * width, (n + 1) * width)]


def _hover(blocks: BlockMap) -> str:
    if blocks.details is None:
        return f"row %{{y}}, column %{{x}}: block = {blocks.columns} × row + column<extra></extra>"
    return (
        "block %{customdata[0]:,d}<br>allocated by serial %{customdata[1]:d} (0: nobody)"
        "<br>references %{customdata[2]:d}<extra></extra>"
    )


def _row_labels(rows: int, columns: int) -> dict[str, object]:
    """The first block of some rows."""
    shown = range(0, rows, max(1, rows // 8))
    return {"tickvals": list(shown), "ticktext": [f"{row * columns:,}" for row in shown]}


def waits_figure(bars: WaitBars, *, dark: bool) -> go.Figure:
    """One bar per request, stacked by cause, the longest wait on top."""
    figure = go.Figure()
    for cause, seconds in bars.seconds.items():
        figure.add_bar(
            y=list(bars.requests),
            x=list(seconds),
            name=spaced(cause),
            orientation="h",
            marker={"color": CAUSES.get(cause, palette(dark=dark)["logical"]), "line": {"width": 0}},
            hovertemplate=f"{spaced(cause)}: %{{x:.3f}} s<extra>%{{y}}</extra>",
        )
    figure.update_layout(
        barmode="stack",
        height=60 + 24 * len(bars.requests),
        margin={"l": 8, "r": 8, "t": 4, "b": 40},
        showlegend=False,
        xaxis={"title": {"text": "seconds waited"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "automargin": True, "type": "category"},
        bargap=0.3,
        uirevision="waits",
    )
    return figure
