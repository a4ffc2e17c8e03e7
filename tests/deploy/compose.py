"""The compose file as data: services, mounts, ports and health checks. Knows the forms we write; judges nothing.

What is written in another form is an `AssertionError`, so that nothing slips past the rules unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
Document = dict[str, Any]


def document() -> Document:
    """The compose file, anchors resolved, variables not."""
    loaded: Document = yaml.safe_load(FILE.read_text())
    return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One entry of `volumes` of a service. `source` is a path beside the compose file, or a volume's name."""

    kind: str
    source: str
    target: PurePosixPath
    read_only: bool
    needs_source: bool
    """Whether a missing path is an error; Docker would otherwise make an empty directory of it."""
    nocopy: bool

    @property
    def host_path(self) -> Path:
        """Where a bind mount comes from."""
        assert self.kind == "bind", self
        return ROOT / self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A published port: who may connect to which port of the host, and where in the container that leads."""

    host: str
    published: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A health check: the URL it asks, and the whole command."""

    command: list[str]
    url: str

    @property
    def port(self) -> int:
        """The port asked."""
        port = urlsplit(self.url).port
        assert port is not None, self.url
        return port

    @property
    def path(self) -> str:
        """The path asked."""
        return urlsplit(self.url).path


class Service:
    """One service of the file."""

    def __init__(self, name: str, raw: Document) -> None:
        self.name, self.raw = name, raw

    @property
    def is_ours(self) -> bool:
        """Whether its image is built here."""
        return "build" in self.raw

    @property
    def command(self) -> list[str]:
        """What is run, less the image's entry point."""
        return [str(part) for part in self.raw.get("command", [])]

    @property
    def environment(self) -> dict[str, str]:
        """Its variables. Everything is written as text: YAML's `true` would come as `True` or not at all."""
        given = self.raw.get("environment", {})
        assert all(isinstance(value, str) for value in given.values()), (self.name, given)
        return dict(given)

    @property
    def user(self) -> tuple[int, int]:
        """(uid, gid); both have to be there, as numbers."""
        match = re.fullmatch(r"(\d+):(\d+)", str(self.raw.get("user")))
        assert match, f"{self.name}: user {self.raw.get('user')!r} is not UID:GID"
        return int(match[1]), int(match[2])

    @cached_property
    def mounts(self) -> list[Mount]:
        """All of its bind mounts and volumes."""
        return [
            Mount(
                kind=entry["type"],
                source=entry["source"],
                target=PurePosixPath(entry["target"]),
                read_only=entry.get("read_only", False),
                needs_source=not entry.get("bind", {}).get("create_host_path", True),
                nocopy=entry.get("volume", {}).get("nocopy", False),
            )
            for entry in self.raw.get("volumes", [])
        ]

    @cached_property
    def ports(self) -> list[Port]:
        """Its published ports, `HOST:PUBLISHED:TARGET` each."""
        found = [re.fullmatch(r"([\d.]+):(\d+):(\d+)", str(entry)) for entry in self.raw.get("ports", [])]
        assert all(found), f"{self.name}: a port is not HOST:PUBLISHED:TARGET: {self.raw.get('ports')}"
        return [Port(host=match[1], published=int(match[2]), target=int(match[3])) for match in found if match]

    @property
    def temporary(self) -> dict[str, str]:
        """Path and options of each tmpfs of its own."""
        return dict(str(entry).partition(":")[::2] for entry in self.raw.get("tmpfs", []))

    @property
    def probe(self) -> Probe:
        """Its health check, which asks for one URL."""
        test = self.raw["healthcheck"]["test"]
        assert test[0] == "CMD", f"{self.name}: {test[0]} needs a shell"
        (url,) = re.findall(r"http://[^\s'\"]+", " ".join(test))
        return Probe(command=test[1:], url=url)

    @property
    def option(self) -> dict[str, str]:
        """The arguments of the form `--name=value`."""
        pairs = (part[2:].partition("=") for part in self.command if part.startswith("--"))
        return {name: value for name, _, value in pairs}

    def host_path(self, inside: str) -> Path | None:
        """Where a path in the container comes from: a path of ours, None if no bind mount covers it."""
        wanted = PurePosixPath(inside)
        for mount in sorted(self.mounts, key=lambda mount: len(mount.target.parts), reverse=True):
            if mount.kind == "bind" and wanted.is_relative_to(mount.target):
                return mount.host_path / wanted.relative_to(mount.target)
        return None


def services(of: Document | None = None) -> dict[str, Service]:
    """Every service by name."""
    return {name: Service(name, raw) for name, raw in (of or document())["services"].items()}


def texts(value: object) -> Iterator[str]:
    """Every string in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
