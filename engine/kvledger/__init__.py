"""The published ledger: layout, writer, reader, rings, invariants, catalogue, formulas. Imports nothing of ours."""
