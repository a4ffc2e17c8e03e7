"""What `kvledger up` asks its children over HTTP: an answer or none, and the agent's page. Parses nothing itself."""

from __future__ import annotations

from kvledger_agent.scrape.errors import ScrapeFailed
from kvledger_agent.scrape.fetch import fetch
from kvledger_agent.scrape.page import Page, parse_page

FETCH_SECONDS = 5.0
FAMILIES = (
    "kvledger_cancellations_total",
    "kvledger_engine_idle",
    "kvledger_findings",
    "kvledger_group_logical_blocks",
    "kvledger_group_shared_blocks",
    "kvledger_pool_blocks",
    "kvledger_pool_capacity_blocks",
    "kvledger_pool_leaked_blocks",
    "kvledger_preemptions_total",
    "kvledger_rejections_total",
    "kvledger_requests_waiting",
    "kvledger_verdict_reason",
    "kvledger_wait_seconds_count",
    "kvledger_wait_seconds_sum",
)
"""What is looked at; everything else on the page is passed over."""


def answer(url: str, *, timeout_seconds: float = FETCH_SECONDS) -> bytes | None:
    """Body of a GET; None when it is refused, or nobody answers in time. No proxy is asked."""
    try:
        return fetch(url, "", timeout_seconds=timeout_seconds).body
    except ScrapeFailed:
        return None


def agents_page(agent_url: str) -> Page | None:
    """The agent's page now; None when it is not to be had."""
    body = answer(f"{agent_url}/metrics")
    return None if body is None else parse_page(body, FAMILIES)


def counted(page: Page | None, name: str, label: str) -> dict[str, int]:
    """What a family counts by one label's value, zeros left out."""
    sums = (page and page.by(name, label)) or {}
    return {value: int(count) for value, count in sums.items() if count}
