"""The agent's subcommands: one module each, its `COMMAND` found by entry point."""
