"""Wrappers on the methods of single objects: put on, and taken off again. Nothing of vLLM's classes is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Wrappers:
    """The wrappers that are on now. One that somebody else has wrapped since cannot be taken off: it goes on noting."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Function, Function | None]] = []

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
        """Put a wrapper before an object's method, if it has that.

        Without a look into the object's `__dict__`: that would make every access to any of its attributes slower, for
        good.
        """
        original = getattr(owner, name, None)
        if original is not None:
            put = wrapper(original)
            before = None if _is_of_its_class(original, owner, name) else original
            # Noted before it is on: whatever fails, it can be taken off.
            self._put.append((owner, name, put, before))
            setattr(owner, name, put)

    def remove(self) -> None:
        """Take every wrapper off, the last one first: the objects are what they were."""
        for owner, name, put, before in reversed(self._put):
            if getattr(owner, name, None) is not put:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._put.clear()


def _is_of_its_class(method: Any, owner: Any, name: str) -> bool:
    """Whether a bound method is what the object's class has, and not something put on the object itself."""
    function = getattr(method, "__func__", None)
    return function is not None and function is getattr(type(owner), name, None)
