"""Without an accelerator the kernels run in Triton's interpreter, which has to be asked for before triton is imported.

Triton compiles or interprets its own library when it is imported, so this is for the whole process.
"""

from __future__ import annotations

import os
import sys

import torch

if not torch.cuda.is_available():
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", "somebody imported triton before"
    os.environ["TRITON_INTERPRET"] = "1"
