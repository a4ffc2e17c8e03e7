"""The reference engine: a paged scheduler and block pool whose working arrays are the ledger."""
