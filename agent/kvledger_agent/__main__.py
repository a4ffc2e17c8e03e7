"""`python -m kvledger_agent` is the `kvledger` command."""

from __future__ import annotations

import sys

from kvledger_agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
