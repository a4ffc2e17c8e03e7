"""What `kvledger doctor` says, word for word, and with which exit code it ends: golden copies of what people read."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kvledger_agent import cli
from kvledger_agent.commands.doctor import COMMAND
from kvledger_agent.scrape.engines import PROFILES
from tests.agent.scrape.serving import Served, page, serving

GOLDEN = Path(__file__).parents[2] / "golden" / "doctor"
ADDRESS = "http://ENGINE:8000"
VLLM = page("vllm-0.32-busy.prom").decode()
GARBLED = VLLM.replace("vllm:num_requests_running{", "vllm:num_requests_running{{", 1).replace("} 7.0", "} seven", 1)
PAGES = {
    "complete": VLLM.encode(),
    "missing": page("vllm-0.32-missing_families.prom"),
    "damaged": GARBLED.encode(),
    "unverified": page("sglang-0.5.22-busy.prom"),
    "stranger": b"# TYPE go_goroutines gauge\ngo_goroutines 7\nnode_load1 0.5\n",
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "json": b'{"detail": "none"}',
    "nothing": b"",
}
CODES = {"complete": 0, "unverified": 0} | dict.fromkeys(
    ("missing", "damaged", "stranger", "html", "json", "nothing"), 1
)


@pytest.fixture(scope="module")
def served() -> Served:  # type: ignore[misc]
    with serving({f"/{name}": body for name, body in PAGES.items()}) as engine:
        engine.put("/failing", b"no", status=500)
        engine.put("/secret", b"no", status=401)
        yield engine


def said(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit code and all that was printed, errors last."""
    monkeypatch.setenv("COLUMNS", "200")
    code = cli.main(["doctor", url])
    printed = capsys.readouterr()
    return code, "".join(f"{line.rstrip()}\n" for line in f"{printed.out}{printed.err}".splitlines())


@pytest.mark.parametrize("name", [*PAGES, "failing", "secret", "absent"])
def test_the_doctor_says_of_an_endpoint_what_its_golden_copy_says(
    name: str,
    served: Served,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    update_golden: bool,
) -> None:
    code, text = said(f"{served.url}/{name}", capsys, monkeypatch)
    text = text.replace(served.url, ADDRESS)
    golden = GOLDEN / f"{name}.txt"
    if update_golden:
        golden.write_text(text)
    assert text == golden.read_text(), "run pytest tests/agent/scrape --update-golden if the change is meant"
    assert code == CODES.get(name, 1)


def test_an_endpoint_that_nobody_serves_is_said_to_be_unreachable_with_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as gone:
        url = gone.url
    code, text = said(url, capsys, monkeypatch)
    assert (code, text.startswith(f"kvledger: nobody answers at {url}: ")) == (1, True)
    assert text.endswith("does the engine run, and is this its port?\n")


def test_an_address_that_is_none_is_a_mistake_of_the_caller(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = said("engine:8000", capsys, monkeypatch)
    assert code == 2
    assert "use a URL such as" in text


def test_every_engine_but_vllm_is_marked_unverified_and_the_help_says_what_that_means() -> None:
    assert {profile.engine for profile in PROFILES if profile.verified} == {"vllm"}
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    assert "An engine marked unverified was never run against" in " ".join(parser.format_help().split())
