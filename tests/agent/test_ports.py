"""Ports of what `kvledger up` starts: the usual ones, unless somebody else has them or is about to."""

from __future__ import annotations

import socket
import subprocess
import sys

from kvledger_agent.up.ports import usable_port
from tests.ports import free_port

CHOOSE = "import sys; from kvledger_agent.up.ports import usable_port; print(usable_port(int(sys.argv[1])), flush=True)"


def chosen_by_another(port: int) -> int:
    """What a second process chooses that would like this port."""
    said = subprocess.run([sys.executable, "-c", CHOOSE, str(port)], capture_output=True, text=True, check=True)
    return int(said.stdout)


def test_of_two_that_start_together_one_gets_the_usual_port_before_anybody_listens_there() -> None:
    port = free_port()
    assert usable_port(port) == port
    assert usable_port(port) == port, "its own claim is no other's"
    assert chosen_by_another(port) != port


def test_a_port_that_its_process_has_left_can_be_had_again() -> None:
    port = free_port()
    assert chosen_by_another(port) == port
    assert chosen_by_another(port) == port


def test_where_somebody_listens_another_port_is_chosen() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = int(listener.getsockname()[1])
        assert usable_port(port) != port
