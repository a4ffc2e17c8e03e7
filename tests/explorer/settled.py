"""When a page of the explorer is as it is to be seen: a condition for the browser, for tests and pictures."""

from __future__ import annotations

SETTLED = """() => {
    const now = performance.now(), fades = document.querySelector('[data-stale=true]')
    window.fresh_since = fades ? undefined : (window.fresh_since ?? now)
    return now - window.fresh_since > 400
}"""
"""Nothing on the page has been fading for a moment, in which a refresh is redrawn."""
