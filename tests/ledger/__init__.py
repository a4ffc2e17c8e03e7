"""Tests of the ledger: its format, its writer, its reader."""
