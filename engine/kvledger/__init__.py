"""The published ledger: layout, writer, reader, rings, invariants, catalogue, byte formulas. Imports nothing of ours."""
