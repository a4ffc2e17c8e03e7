"""The command lines of our services, read by the commands' own parsers. Runs none of them."""

from __future__ import annotations

import argparse
import importlib
import tomllib
from typing import Any

import pytest

from tests.deploy.compose import ROOT, Service

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def parsed(service: Service, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """The command line of a service of ours, in the service's environment. Ends the process for a usage error."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    name, *arguments = service.command
    module, _, attribute = PROJECT["project"]["entry-points"]["kvledger.commands"][name].partition(":")
    parser = argparse.ArgumentParser()
    getattr(importlib.import_module(module), attribute).configure(parser)
    return parser.parse_args(arguments)
