"""What can be wrong with a checkpoint, as a type. Imports no torch.

EngineError
└── BadCheckpoint               a directory that is no checkpoint this engine can compute (exit code 2)
"""

from __future__ import annotations

from kvledger_engine.errors import EngineError


class BadCheckpoint(EngineError):
    """A checkpoint this engine cannot compute; the message names the file or key, its value and the remedy."""

    exit_code = 2
