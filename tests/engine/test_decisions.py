"""The decision table: it knows every reason, is what the page says, and is the only place where that is said."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kvledger.words import FinishReason, RejectionReason
from kvledger_engine import decisions, wire
from kvledger_engine.admission import Refusal
from kvledger_engine.decisions import ENDINGS, OK, REFUSALS, Decision

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
TABLE: dict[tuple[str, str], Decision] = {
    **{(reason.word, ""): decided for reason, decided in REFUSALS.items()},
    **{(reason.word, ""): decided for reason, decided in ENDINGS.items()},
    ("bad_request", "no such model"): decisions.NO_SUCH_MODEL,
    ("bad_request", "API key"): decisions.NO_KEY,
    ("bad_request", "another's tenant"): decisions.ANOTHERS_TENANT,
    ("bad_request", "body over 32 MiB"): decisions.LARGE_BODY,
    ("cancelled", "`POST /v1/abort`"): decisions.ABORTED,
}


def test_every_reason_has_a_status_and_whatever_is_no_completion_says_what_to_do() -> None:
    assert set(REFUSALS) == set(RejectionReason)
    assert set(ENDINGS) == set(FinishReason)
    assert {reason for reason, decided in ENDINGS.items() if decided.status == OK} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }
    for key, decided in TABLE.items():
        assert decided.status == OK or (decided.status >= 400 and decided.advice), key
        assert decided.retry_after_seconds >= 1


def test_the_page_has_a_row_for_each_and_says_the_same() -> None:
    rows = re.findall(r"^\| `(\w+)`(?: \(([^|]*)\))? \| (\d+) \| [^|]+ \| (yes|no|) ?\| ", PAGE, re.MULTILINE)
    said = {(code, case): (int(status), retryable == "yes") for code, case, status, retryable in rows}
    assert said == {key: (decided.status, decided.retryable) for key, decided in TABLE.items()}


@pytest.mark.parametrize("reason", RejectionReason)
def test_what_a_client_is_told_is_the_fact_and_the_tables_advice(reason: RejectionReason) -> None:
    told = Refusal(reason, "There are 3 of 2")
    assert told.retryable is REFUSALS[reason].retryable
    assert told.advice.startswith("There are 3 of 2")
    assert reason is RejectionReason.BAD_REQUEST or told.advice.endswith(f": {REFUSALS[reason].advice}.")


def test_no_other_module_of_the_engine_states_a_status() -> None:
    """Numbers of statuses that a refusal may have; 500 and 512 are sizes, too, and no answer has them."""
    statuses = {decided.status for decided in TABLE.values()} - {OK} | {decisions.METHOD_NOT_ALLOWED}
    found = []
    for path in sorted((ROOT / "engine" / "kvledger_engine").rglob("*.py")):
        numbers = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        if path.name != "decisions.py" and {n for n in numbers if type(n) is int} & statuses:
            found.append(path.name)
    assert found == []


def test_a_core_that_is_gone_and_one_that_ends_are_answered_from_the_table() -> None:
    for error, decided in (
        (wire.ENGINE_ERROR, ENDINGS[FinishReason.ENGINE_ERROR]),
        (wire.DRAINING, REFUSALS[RejectionReason.DRAINING]),
        (wire.ABORTED, decisions.ABORTED),
    ):
        assert (error.status, error.message, error.retryable) == (decided.status, decided.message, decided.retryable)
        assert error.headers.get("Retry-After") == (str(decided.retry_after_seconds) if decided.retryable else None)
