"""What an agent sees of a machine: other pid namespaces, other pods' memory, foreign groups, engines of one name."""

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

from kvledger.segment import ledger_path
from tests.fleet.files import FLEET, ROOT
from tests.fleet.stack import ledger

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("mount"), pytest.mark.needs("tmpfs")]

GROUP, AGENT, OTHER_GROUP = 10_000, 10_002, 4242
HOLD = (sys.executable, "-m", "tests.agent.children", "hold")
OWN_PIDS = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

# The code may lie where another user cannot read it, so it is imported before the user changes.
LOOK = """
import json, os, sys
from pathlib import Path
import numpy.ma  # which numpy imports when it is first needed
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
directory, uid, gid = sys.argv[1:]
agent = Agent(AgentConfig(directory=Path(directory)))
os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
fleet = agent.sample_once()
print(json.dumps({
    "up": {o.identity.key: o.liveness.up for o in fleet.observations},
    "sources": {s.source: [s.success, s.status] for s in fleet.sources},
}))
"""
WRITE = """
import os, sys
from pathlib import Path
from kvledger.writer import Ledger
from tests.ledger.toy import toy_limits
directory, engine, uid, group = sys.argv[1:]
os.setgroups([int(group)]); os.setgid(int(uid)); os.setuid(int(uid)); os.umask(0o027)
Ledger.create(Path(directory), toy_limits(engine=engine)).close()
"""
REMOVE = """
import os, sys
path, uid, group = sys.argv[1:]
os.setgroups([int(group)]); os.setgid(int(uid)); os.setuid(int(uid))
os.unlink(path)
"""


def environment() -> dict[str, str]:
    """That of a child which imports this repository."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / s) for s in (".", "engine", "agent"))}


def run(code: str, *arguments: object, inside: int | None = None) -> subprocess.CompletedProcess[str]:
    """Python code as a process, in the mount namespace of another one if told so."""
    enter = [] if inside is None else ["nsenter", f"--mount=/proc/{inside}/ns/mnt"]
    command = [*enter, sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)


def seen(directory: Path, *, uid: int = 0, gid: int = 0, inside: int | None = None) -> dict[str, Any]:
    """What an agent of this user sees there."""
    done = run(LOOK, directory, uid, gid, inside=inside)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def held(*command: str) -> Iterator[int]:
    """A process that holds a ledger until the end of the block; its pid."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def test_engines_in_pid_namespaces_of_their_own_are_seen_to_live_and_to_end(memory: Path) -> None:
    with held(*OWN_PIDS, *HOLD, str(memory), "first", "0"):
        with held(*OWN_PIDS, *HOLD, str(memory), "second", "0"):
            assert seen(memory)["up"] == {"first:0": True, "second:0": True}
        assert seen(memory)["up"] == {"first:0": True, "second:0": False}


def test_another_pods_memory_is_seen_from_inside_that_pod_only(memory: Path) -> None:
    mounted = 'mount -t tmpfs -o size=16m,mode=2777 none "$0" && exec "$@"'
    with held("unshare", "--mount", "sh", "-c", mounted, str(memory), *HOLD, str(memory), "pod", "0") as pid:
        assert seen(memory) == {"up": {}, "sources": {}}
        assert seen(memory, inside=pid)["up"] == {"pod:0": True}


def test_a_ledger_of_a_foreign_group_is_named_as_unreadable_and_disturbs_no_other(memory: Path) -> None:
    memory.chmod(0o755)
    with ledger(memory, "ours", 0), ledger(memory, "theirs", 0):
        for engine, group in (("ours", GROUP), ("theirs", OTHER_GROUP)):
            os.chown(ledger_path(memory, engine, 0, 1), 0, group)

        found = seen(memory, uid=AGENT, gid=GROUP)

    assert found["up"] == {"ours:0": True}
    assert found["sources"]["theirs:0"] == [False, "not_permitted"]
    assert found["sources"]["ours:0"][0] is True


def test_a_second_engine_of_one_name_and_rank_is_refused_with_the_file_that_is_written(memory: Path) -> None:
    with ledger(memory, "chat", 0), ledger(memory, "chat", 1):
        second = subprocess.run([*HOLD, str(memory), "chat", "0"], cwd=ROOT, env=environment(), capture_output=True)
        assert second.returncode != 0
        assert b"chat.0.00000001.kvledger is being written by process" in second.stderr
        assert seen(memory)["up"] == {"chat:0": True, "chat:1": True}


def test_in_the_machines_directory_ledgers_get_its_group_and_nobody_removes_anothers(memory: Path) -> None:
    (line,) = (s for s in (FLEET / "kubernetes/tmpfiles.conf").read_text().splitlines() if not s.startswith("#"))
    directory = memory / "kvledger"
    memory.chmod(0o755)
    directory.mkdir()
    os.chown(directory, 0, int(line.split()[4]))
    directory.chmod(int(line.split()[2], 8))
    first, second = 20_001, 20_002

    made = run(WRITE, directory, "pod-a", first, GROUP)
    removed = run(REMOVE, ledger_path(directory, "pod-a", 0, 1), second, GROUP)

    assert made.returncode == 0, made.stderr
    status = ledger_path(directory, "pod-a", 0, 1).stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (first, GROUP, 0o640)
    assert "PermissionError" in removed.stderr
    assert run(WRITE, directory, "pod-b", second, GROUP).returncode == 0
    assert seen(directory, uid=AGENT, gid=GROUP)["up"] == {"pod-a:0": False, "pod-b:0": False}
    assert seen(directory, uid=AGENT, gid=OTHER_GROUP)["up"] == {}
