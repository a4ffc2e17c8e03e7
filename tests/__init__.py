"""The tests, mirroring the modules: ledger, engine, agent; ground (packaging, import rules); e2e (the command)."""
