"""Transfers: the block copies between pool and host that the next step makes. Copies nothing itself.

Owns which are pending. One into a block that somebody else has come to use meanwhile is forgotten, so that no block is
the target of two. A host block that is to be copied from keeps a reference until that is done.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger_engine.batch import HostCopies
from kvledger_engine.hostblocks import HostBlocks
from kvledger_engine.ids import Ids

_NOTHING: I32 = np.zeros(0, np.int32)


class Transfers:
    """The pending copies out to `host` blocks and back in."""

    def __init__(self, host: HostBlocks) -> None:
        self._host = host
        self._clear()

    def _clear(self) -> None:
        self._out_sources = self._out_hosts = self._in_hosts = self._in_targets = _NOTHING

    def __len__(self) -> int:
        return len(self._out_hosts) + len(self._in_hosts)

    @property
    def out_hosts(self) -> I32:
        """Host blocks whose content is yet to come."""
        return self._out_hosts

    @property
    def in_hosts(self) -> I32:
        """Host blocks whose content is yet to be brought in."""
        return self._in_hosts

    def pending(self) -> HostCopies:
        """The copies to make now, the ones out first."""
        return HostCopies(
            out_sources=self._out_sources,
            out_hosts=self._out_hosts,
            in_hosts=self._in_hosts,
            in_targets=self._in_targets,
        )

    def copy_out(self, sources: I32, hosts: I32) -> None:
        """Save these pool blocks, as they are now, in these host blocks."""
        self._out_sources = np.concatenate((self._out_sources, sources))
        self._out_hosts = np.concatenate((self._out_hosts, hosts))

    def bring_in(self, hosts: I32, targets: I32) -> None:
        """Fill these pool blocks from these host blocks, whose references are taken over."""
        self._host.link(hosts, targets)
        self._in_hosts = np.concatenate((self._in_hosts, hosts))
        self._in_targets = np.concatenate((self._in_targets, targets))

    def drop(self, hosts: I32) -> None:
        """One reference less to each host block; what nobody needs any more is not saved."""
        self._host.drop(hosts)
        needed = self._host.references(self._out_hosts) > 0
        if not needed.all():
            self._out_sources, self._out_hosts = self._out_sources[needed], self._out_hosts[needed]

    def overwritten(self, blocks: Ids) -> None:
        """Pool blocks have new holders: they are nobody's twins, and nothing is brought into them."""
        self._host.overwritten(blocks)
        if not len(self._in_targets):
            return
        gone = np.isin(self._in_targets, blocks)
        hosts = self._in_hosts[gone]
        self._in_hosts, self._in_targets = self._in_hosts[~gone], self._in_targets[~gone]
        self.drop(hosts)

    def done(self) -> None:
        """The copies have been made. Blocks that are not full go their own ways from now on."""
        hosts, brought = np.concatenate((self._out_hosts, self._in_hosts)), self._in_hosts
        self._clear()
        self._host.unlink_parts(hosts)
        self._host.drop(brought)

    def failed(self) -> None:
        """The copies may not have been made: no block that was to be filled is a twin."""
        self._host.unlink(self._in_hosts)
        self.done()
