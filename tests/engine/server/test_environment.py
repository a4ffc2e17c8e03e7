"""What the core's process is given beside its options."""

from __future__ import annotations

from kvledger_engine.command import core_environment


def test_waiting_threads_of_the_core_sleep_unless_the_user_says_otherwise() -> None:
    assert core_environment({"HOME": "x"}) == {"HOME": "x", "OMP_WAIT_POLICY": "PASSIVE"}
    assert core_environment({"OMP_WAIT_POLICY": "ACTIVE"}) == {"OMP_WAIT_POLICY": "ACTIVE"}
