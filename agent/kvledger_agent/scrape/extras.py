"""Documents beside a metrics page, as families of a page: SGLang's load snapshot, llama.cpp's slots. Pure.

They are told by their shape, not by where they came from; what is not of that shape adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvledger_agent.scrape.page import Labels, Page

MAX_ENTRIES = 4096


def with_documents(page: Page, documents: Mapping[str, Any]) -> Page:
    """The page with what its documents say added to it. The page itself is left as it is."""
    families = dict(page.families)
    for document in documents.values():
        families.update(page_of_document(document).families)
    return Page(families, page.damaged_lines, page.damaged, page.truncated)


def page_of_document(document: Any) -> Page:
    """A document as a page: `{"loads": [...]}` or a list of slots. An empty page for anything else."""
    if isinstance(document, Mapping) and isinstance(document.get("loads"), list):
        return Page(_loads(document["loads"][:MAX_ENTRIES]))
    if isinstance(document, list) and len(document) <= MAX_ENTRIES:
        return Page(_slots(document))
    return Page()


def _loads(loads: list[Any]) -> dict[str, dict[Labels, float]]:
    """One series per rank for every number, named as the endpoint's own Prometheus format names them."""
    families: dict[str, dict[Labels, float]] = {}
    for load in loads:
        if not isinstance(load, Mapping) or (rank := _number(load.get("dp_rank", 0))) is None:
            continue
        # A page of a single rank has no label for it, and its snapshot says 0.
        labels: Labels = (("dp_rank", f"{rank:.0f}"),) if len(loads) > 1 else ()
        for key, value in load.items():
            parts = {f"{key}_{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value}
            for name, part in parts.items():
                if name != "dp_rank" and (number := _number(part)) is not None:
                    families.setdefault(f"sglang_{name}", {})[labels] = number
    return families


def _slots(slots: list[Any]) -> dict[str, dict[Labels, float]]:
    """How many slots there are, and how many are busy; nothing if one of them does not say."""
    busy = [slot.get("is_processing") if isinstance(slot, Mapping) else None for slot in slots]
    if not slots or not all(isinstance(state, bool) for state in busy):
        return {}
    known = {"": len(busy), "_busy": sum(map(bool, busy)), "_idle": len(busy) - sum(map(bool, busy))}
    return {f"llamacpp_slots{name}": {(): float(count)} for name, count in known.items()}


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None
