"""A figure's legend as HTML below its heading: it takes as many lines as the width asks for, plotly's does not.

Plotly's has its place within the figure, whose height is fixed, so that in a narrow window it would lie on the bars.
"""

from __future__ import annotations

import html

import plotly.graph_objects as go

_LIST = "display:flex;flex-wrap:wrap;gap:0.2rem 1.2rem;font-size:0.8rem;line-height:1.4"
_ENTRY = "display:inline-flex;align-items:center;gap:0.4rem;white-space:nowrap"
_SQUARE = "width:0.8rem;height:0.8rem;border-radius:2px"
_LINE = "width:1.4rem;height:0"
_STYLES = {"dash": "dashed", "dot": "dotted"}


def legend(figure: go.Figure) -> str:
    """Every named trace of a figure, in its order."""
    entries = "".join(_entry(trace) for trace in figure.data if trace.name)
    return f'<div class="kvledger-legend" style="{_LIST}">{entries}</div>'


def _entry(trace: go.Bar | go.Scatter) -> str:
    if trace.type == "scatter" and trace.mode == "lines":
        shape = f"{_LINE};border-top:2px {_STYLES.get(trace.line.dash, 'solid')} {trace.line.color}"
    else:
        shape = f"{_SQUARE};background:{trace.marker.color}"
    return f'<span style="{_ENTRY}"><span style="{shape}"></span>{html.escape(trace.name)}</span>'
