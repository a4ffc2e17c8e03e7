"""Which vLLM has what the plugin needs: the version that is installed, and two older ones by their sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvledger_vllm.capabilities import OPTIONAL
from tests.vllm.older import CALLS, HOOKED
from tests.vllm.versions import BEGIN, END, OLDER, Version, get, table, version_of

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "vllm.md"


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


@pytest.mark.parametrize("number", OLDER)
def test_an_older_versions_own_scheduler_is_mirrored_block_for_block(
    number: str, tiny_model: Path, ledger_directory: Path, tmp_path: Path
) -> None:
    """Its sources before the installed ones', with the packages that those require: every hooked module is imported,
    and its scheduler does random work. Its compiled parts are not there, and no model runs."""
    try:
        (wheel,) = get((number,))
    except subprocess.CalledProcessError:
        pytest.skip(f"no package index from which {number} can be fetched")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            tmp_path, [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        )
    paths = [tmp_path, ROOT / "engine", ROOT / "agent", ROOT]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vllm.older", str(tiny_model), str(ledger_directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "VLLM_TARGET_DEVICE": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["version"].startswith(number)
    assert {Path(file).is_relative_to(tmp_path) for file in said["files"].values()} == {True}
    assert set(said["files"]) == set(HOOKED)
    assert (said["calls"], said["corrections"]) == (CALLS, 0)
    assert min(said["generated"], said["preemptions"]) > 0


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
