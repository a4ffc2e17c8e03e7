"""The inner loops of the block side, compiled: each works on the arrays of one cache, see `arrays`, and holds nothing.

A loop over blocks, tokens or table entries is here, one that decides anything is not. Compiled once per machine and
version; `python -m kvledger_engine.compiled` does it beforehand.
"""
