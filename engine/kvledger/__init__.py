"""The published ledger format: layout, writer, reader, rings, invariants, catalogue and byte formulas. Imports nothing of ours."""
