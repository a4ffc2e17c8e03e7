"""Wrappers on the methods of single objects: put on, and taken off again. Nothing of vLLM's classes is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Wrappers:
    """The wrappers that are on now. Taking one off is deleting an attribute."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str]] = []

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
        """Put a wrapper before an object's method, if it has that."""
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, wrapper(original))
            self._put.append((owner, name))

    def remove(self) -> None:
        """Take every wrapper off: the objects are what they were."""
        for owner, name in self._put:
            owner.__dict__.pop(name, None)
        self._put.clear()


def takes_one(function: Function) -> bool:
    """Whether a method takes exactly one argument: a wrapper of such a one need not pack and unpack any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return [parameter.kind for parameter in parameters] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]
