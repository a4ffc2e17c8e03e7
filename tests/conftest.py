"""Session-wide test set-up: what this machine can do, hypothesis settings, and a closing list of what was skipped.

A test that needs something a machine may lack carries `@pytest.mark.needs("promtool")`. Without it the test is skipped
by name, and the end of the run says which capabilities were missing and how many tests that cost.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.children import memory_directory

# Cores are shared with other work: a slow example says nothing about the code.
settings.register_profile("kvledger", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvledger")

SKIP_PREFIX = "needs "


def _has_distribution() -> bool:
    """Whether the distribution itself, with its entry points, is installed."""
    try:
        metadata.distribution("kvledger")
    except metadata.PackageNotFoundError:
        return False
    return True


def _can_mount() -> bool:
    """Whether this process may mount a tmpfs of its own: CAP_SYS_ADMIN, bit 21 of its effective capabilities."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> 21 & 1) and shutil.which("mount") is not None


VLLM, KERNEL = Path(__file__).parent / "vllm", "kvledger_engine.compiled.kernel"
CAPABILITIES: dict[str, tuple[Callable[[], bool], str]] = {
    "alertmanager": (
        lambda: all(map(shutil.which, ("prometheus-alertmanager", "amtool"))),
        "Alertmanager is not installed (apt: prometheus-alertmanager)",
    ),
    "curl": (lambda: shutil.which("curl") is not None, "curl is not installed"),
    "distribution": (_has_distribution, "the kvledger distribution is not installed (pip install -e .)"),
    "gpu": (lambda: Path("/dev/nvidiactl").exists(), "no accelerator"),
    "import-linter": (lambda: importlib.util.find_spec("importlinter") is not None, "import-linter is not installed"),
    "prometheus": (lambda: shutil.which("prometheus") is not None, "prometheus is not installed (apt: prometheus)"),
    "chromium": (
        lambda: shutil.which("chromium") is not None and importlib.util.find_spec("playwright") is not None,
        "no chromium on the path, or playwright is not installed",
    ),
    "streamlit": (
        lambda: all(importlib.util.find_spec(name) is not None for name in ("streamlit", "plotly")),
        "streamlit or plotly is not installed (pip install 'kvledger[explorer]')",
    ),
    "promtool": (lambda: shutil.which("promtool") is not None, "promtool is not on the path (apt: prometheus)"),
    "root": (lambda: os.geteuid() == 0, "only root can take another uid"),
    "mount": (_can_mount, "only root with CAP_SYS_ADMIN can mount a tmpfs"),
    "traces": (
        lambda: (Path(__file__).parents[2] / "shared" / "traces").is_dir(),
        "the public request traces are not at ../shared/traces",
    ),
    "tmpfs": (lambda: os.access("/dev/shm", os.W_OK), "no writable /dev/shm"),
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs, gone after the test."""
    with memory_directory() as directory:
        yield directory


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the engine's kernels, where they are not yet, before the time of the first test is running.

    Most tests with a real vLLM run none of them, and have a numba of their own, for which it takes minutes.
    """
    wanted = KERNEL in sys.modules or any(not item.path.is_relative_to(VLLM) for item in session.items)
    if wanted and not hasattr(session.config, "workerinput") and importlib.util.find_spec("numba") is not None:
        import_module(KERNEL).prepare()


def _needed(item: pytest.Item) -> list[str]:
    """The capabilities a test asks for."""
    needed = [str(marker.args[0]) for marker in item.iter_markers("needs")]
    return needed + ["gpu"] * (item.get_closest_marker("gpu") is not None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as skipped, by capability, what this machine cannot run."""
    missing = {name: why for name, (probe, why) in CAPABILITIES.items() if not probe()}
    for item in items:
        for name in _needed(item):
            if name not in CAPABILITIES:
                raise pytest.UsageError(f"{item.nodeid} needs {name!r}; known capabilities: {sorted(CAPABILITIES)}")
            if name in missing:
                item.add_marker(pytest.mark.skip(reason=f"{SKIP_PREFIX}{name}: {missing[name]}"))


def _skip_reason(report: pytest.TestReport) -> str:
    """The reason a skipped test gave, without pytest's prefix."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which capabilities were missing, and how many tests each of them cost."""
    skipped = Counter(_skip_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    terminalreporter.section("skipped capabilities")
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"{count} skipped, {reason}")
    terminalreporter.write_line(f"skipped capabilities: {len(skipped)}, tests skipped: {sum(skipped.values())}")
