"""Which vLLM has what the plugin needs: the version that is installed, and two older ones by their sources."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvledger_vllm.capabilities import OPTIONAL
from tests.vllm.versions import BEGIN, END, OLDER, Version, get, table, version_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "vllm.md"


@pytest.fixture(scope="module")
def installed() -> Path:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def older() -> list[Version]:
    try:
        wheels = get(OLDER)
    except subprocess.CalledProcessError:
        pytest.skip(f"no package index from which {OLDER} can be fetched")
    return [version_of(wheel) for wheel in wheels]


def test_the_installed_version_has_everything(installed: Path) -> None:
    version = version_of(installed)
    assert (version.number, version.missing, version.blind) == ("0.32.0", (), ())


def test_two_older_versions_have_what_the_plugin_cannot_do_without(older: list[Version]) -> None:
    assert [version.number for version in older] == list(OLDER)
    assert [version.missing for version in older] == [(), ()]


def test_the_documented_table_is_the_one_that_the_sources_say(older: list[Version], installed: Path) -> None:
    _, _, rest = DOCUMENT.read_text().partition(BEGIN)
    shown, mark, _ = rest.partition(END)
    assert mark
    assert shown.strip() == table([*older, version_of(installed)]).strip()


def test_what_a_version_lacks_is_named(installed: Path, tmp_path: Path) -> None:
    """The installed sources with three names changed."""
    changed = tmp_path / "vllm"
    (changed / "v1" / "core" / "sched").mkdir(parents=True)
    (changed / "_version.py").write_text("version = '9.9.0'\n")
    for file in ("core/sched/scheduler.py", "core/sched/interface.py", "core/block_pool.py", "request.py"):
        source = (installed / "v1" / file).read_text()
        source = source.replace("deferred_waiting", "set_aside").replace("def touch(", "def hold(")
        (changed / "v1" / file).write_text(source.replace("self.cache_salt", "self.salt"))
    version = version_of(changed)
    assert version.number == "9.9.0"
    assert {"kv_cache_manager.block_pool.touch", "Request.cache_salt"} <= set(version.missing)
    assert "deferred_waiting" in version.blind
    assert f"`deferred_waiting`: {OPTIONAL['deferred_waiting']} | **no** |" in table([version])
