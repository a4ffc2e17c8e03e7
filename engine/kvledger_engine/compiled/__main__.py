"""Compile every kernel now, so that no start has to: `python -m kvledger_engine.compiled`."""

from kvledger_engine.compiled.kernel import prepare

if __name__ == "__main__":
    prepare()
