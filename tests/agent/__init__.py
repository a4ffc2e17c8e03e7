"""Tests of the agent. Ledgers are written by child processes, or read back from the writer's own memory."""
