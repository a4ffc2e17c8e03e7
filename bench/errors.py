"""What stops a measurement. A missed bar is a result, never an error."""

from __future__ import annotations


class BenchError(Exception):
    """A row could not be measured, or what it measured did not do its work; the message says which and what to do."""


class NotHere(BenchError):
    """A row needs something that this machine lacks; the message says what and where to get it. The row is skipped."""
