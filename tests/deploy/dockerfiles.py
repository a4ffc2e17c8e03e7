"""A Dockerfile as its instructions, and what the build context holds of the repository. Builds nothing."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from tests.deploy.compose import ROOT


@dataclass(frozen=True, slots=True)
class Copied:
    """One COPY: its sources, its target, and the stage it takes them from (None = the build context)."""

    sources: list[str]
    target: str
    stage: str | None


class Dockerfile:
    """The instructions of a file, in order, continued lines joined."""

    def __init__(self, path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
        self.instructions = [(word, rest) for word, _, rest in (s.partition(" ") for s in joined.splitlines()) if word]

    def all(self, word: str) -> list[str]:
        """What follows each instruction of this name."""
        return [rest for instruction, rest in self.instructions if instruction == word]

    @property
    def last_stage(self) -> dict[str, str]:
        """The last instruction of each name in the stage that becomes the image."""
        last: dict[str, str] = {}
        for word, rest in self.instructions:
            last = {word: rest} if word == "FROM" else last | {word: rest}
        return last

    @property
    def bases(self) -> list[str]:
        """The images it is built from."""
        return [rest.split()[0] for rest in self.all("FROM")]

    @property
    def stages(self) -> list[str]:
        """Names of its stages."""
        return [rest.split()[2] for rest in self.all("FROM") if " AS " in rest]

    @property
    def copied(self) -> list[Copied]:
        """Every COPY."""
        found = []
        for rest in self.all("COPY"):
            *sources, target = (part for part in rest.split() if not part.startswith("--"))
            stage = re.match(r"--from=(\S+)", rest)
            found.append(Copied(sources, target, stage[1] if stage else None))
        return found

    @property
    def extras(self) -> set[str]:
        """The extras of ours that it installs."""
        found = re.findall(r"'\.\[([\w,]+)\]'", " ".join(self.all("RUN")))
        return {extra for names in found for extra in names.split(",")}

    @property
    def environment(self) -> dict[str, str]:
        """What ENV sets in the image."""
        parts = shlex.split(self.last_stage.get("ENV", ""))
        return dict(part.partition("=")[::2] for part in parts)


def in_context(path: str) -> bool:
    """Whether .dockerignore lets a path of the repository into the build; the last pattern that fits decides."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if pattern and not pattern.startswith("#") and _fits(PurePosixPath(path), pattern):
            kept = line.startswith("!")
    return kept


def _fits(path: PurePosixPath, pattern: str) -> bool:
    """Whether a pattern names the path or a folder above it."""
    parts = path.parts
    if pattern.startswith("**/"):
        return any(fnmatch(part, pattern[3:]) for part in parts)
    assert "/" not in pattern, f"{pattern!r}: a form this function does not read"
    return fnmatch(parts[0], pattern)
