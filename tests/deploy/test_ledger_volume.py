"""The ledgers' volume: the engine's user writes it, the agent's user reads it, from containers of their own.

The tmpfs is mounted with the very options of the compose file. Instead of containers there are processes with the
services' users, each in a pid namespace of its own, and a read-only bind mount for the agent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvledger.layout import plan_layout
from kvledger.segment import DIRECTORY_MODE
from kvledger_engine.options import core_options
from tests.deploy.commands import parsed
from tests.deploy.compose import ROOT, document, services

VOLUME = "ledgers"
LEDGERS_AT_ONCE = 3
"""That of a start being made, that of the running engine, and its predecessor's."""
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

# The code may lie where another user cannot read it, so it is imported before the user changes.
WRITE = """
import argparse, os, sys
from pathlib import Path
from kvledger.writer import Ledger
from kvledger_engine.arguments import add_arguments
from kvledger_engine.options import core_options
directory, uid, gid, starts, *arguments = sys.argv[1:]
parser = argparse.ArgumentParser()
add_arguments(parser)
limits = core_options(parser.parse_args(arguments)).config.limits()
os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
for _ in range(int(starts) - 1):
    Ledger.create(Path(directory), limits).close()
with Ledger.create(Path(directory), limits):
    print("ready", flush=True)
    sys.stdin.read()
"""
READ = """
import json, os, sys
from pathlib import Path
import numpy.ma  # which numpy imports when it is first needed
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
directory, uid, gid = sys.argv[1:]
agent = Agent(AgentConfig(directory=Path(directory)))
os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
fleet = agent.sample_once()
print(json.dumps([[o.identity.key, o.liveness.up, o.liveness.status] for o in fleet.observations]))
try:
    (Path(directory) / "written").touch()
except OSError as error:
    print(type(error).__name__, error.errno)
agent.close()
"""


def options() -> dict[str, str]:
    """The mount options of the volume."""
    volume = document()["volumes"][VOLUME]
    assert (volume["driver"], volume["driver_opts"]["type"], volume["driver_opts"]["device"]) == (
        "local", "tmpfs", "tmpfs",
    )  # fmt: skip
    return {name: value for name, _, value in (part.partition("=") for part in volume["driver_opts"]["o"].split(","))}


def environment() -> dict[str, str]:
    """What children need to find the code."""
    roots = os.pathsep.join(str(ROOT / root) for root in ("engine", "agent"))
    return os.environ | {"PYTHONPATH": roots}


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_engine_owns_the_volume_and_the_agent_is_another_user_of_its_group() -> None:
    engine, agent, given = services()["engine"].user, services()["agent"].user, options()
    assert (int(given["uid"]), int(given["gid"])) == engine
    assert int(given["mode"], 8) == DIRECTORY_MODE
    assert agent[0] != engine[0]
    assert agent[1] == engine[1]
    assert {"nosuid", "nodev", "noexec"} <= given.keys()


def test_the_engine_writes_it_the_agent_only_reads_and_nobody_else_has_it() -> None:
    mounts = {name: mount for name, s in services().items() for mount in s.mounts if mount.source == VOLUME}
    assert {name: mount.read_only for name, mount in mounts.items()} == {"engine": False, "agent": True}
    # Docker would give an empty volume the owner and mode of the image's directory.
    assert all(mount.nocopy for mount in mounts.values())


def test_the_volume_holds_every_ledger_there_can_be_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    size = options()["size"]
    room = int(size[:-1]) * UNITS[size[-1]]
    config = core_options(parsed(services()["engine"], monkeypatch)).config
    assert room >= 2 * LEDGERS_AT_ONCE * plan_layout(config.limits()).file_bytes, "half of it is left for larger pools"


# -- the real thing ---------------------------------------------------------------------------------------------------


@contextmanager
def mounted(target: Path, *arguments: str) -> Iterator[Path]:
    """A mount, and its end."""
    target.mkdir()
    subprocess.run(["mount", *arguments, str(target)], check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


@pytest.fixture
def volume(memory: Path) -> Iterator[Path]:
    """The volume as Docker would mount it."""
    memory.chmod(0o755)
    given = document()["volumes"][VOLUME]["driver_opts"]
    with mounted(memory / VOLUME, "-t", given["type"], "-o", given["o"], given["device"]) as ledgers:
        yield ledgers


@pytest.fixture
def seen_by_the_agent(volume: Path) -> Iterator[Path]:
    """The same, as the agent's container has it: read-only."""
    with mounted(volume.parent / "seen", "--bind", str(volume)) as seen:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(seen)], check=True)
        yield seen


@contextmanager
def writing(volume: Path, *, starts: int = 1) -> Iterator[None]:
    """The engine's user, with as many starts of the file's engine, the last of which lives until the block ends."""
    engine = services()["engine"]
    arguments = [str(volume), *map(str, engine.user), str(starts), *engine.command[1:]]
    child = subprocess.Popen(
        [*NAMESPACES, sys.executable, "-c", WRITE, *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield
    finally:
        child.communicate()


def look(directory: Path, user: tuple[int, int]) -> tuple[Any, str]:
    """What an agent of this user sees, and what comes of its attempt to write."""
    done = subprocess.run(
        [*NAMESPACES, sys.executable, "-c", READ, str(directory), *map(str, user)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    seen, refused = done.stdout.splitlines()
    return json.loads(seen), refused


@pytest.mark.needs("mount")
@pytest.mark.needs("tmpfs")
def test_the_agents_user_sees_the_engine_live_from_another_pid_namespace_and_cannot_write(
    volume: Path, seen_by_the_agent: Path
) -> None:
    with writing(volume):
        live, refused = look(seen_by_the_agent, services()["agent"].user)
    closed, _ = look(seen_by_the_agent, services()["agent"].user)
    assert live == [["embedded:0", True, "idle"]]
    assert refused == "OSError 30", "a read-only file system"
    assert closed == [["embedded:0", False, "closed"]]


@pytest.mark.needs("mount")
@pytest.mark.needs("tmpfs")
def test_another_user_sees_nothing(volume: Path, seen_by_the_agent: Path) -> None:
    with writing(volume):
        assert look(seen_by_the_agent, services()["explorer"].user)[0] == []


@pytest.mark.needs("mount")
@pytest.mark.needs("tmpfs")
def test_start_after_start_finds_room(volume: Path) -> None:
    with writing(volume, starts=4):
        room = os.statvfs(volume)
        assert len(list(volume.glob("*.kvledger"))) <= LEDGERS_AT_ONCE - 1
        assert room.f_bavail * 2 > room.f_blocks
