"""All ledgers of a directory as sources: opened when they appear, released when they go, each on its own.

A ledger that cannot be read is a source with a status and no observation; it never spoils another.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from kvledger.buffers import Buffers
from kvledger.clock import NS_PER_SECOND
from kvledger.errors import LedgerUnreadable, NotALedger
from kvledger.status import ReadStatus, status_of_error
from kvledger_agent.directory import LedgerFile, scan
from kvledger_agent.fleet import INTERNAL_ERROR, SourceHealth
from kvledger_agent.ledger_source import Complete, LedgerSource, as_it_is
from kvledger_agent.observation import Observation
from kvledger_agent.verdict.judge import WINDOW_SECONDS

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """One (engine, rank): its current file, what reads it, and totals that outlive a change of file."""

    file: LedgerFile
    source: LedgerSource | None = None
    lost_before: int = 0
    retries_before: int = 0
    last_good_ns: int | None = None
    error: str | None = None

    @property
    def lost(self) -> int:
        return self.lost_before + (self.source.lost if self.source else 0)

    @property
    def retries(self) -> int:
        return self.retries_before + (self.source.retries if self.source else 0)

    def release(self) -> None:
        """Close the reader, keeping what it counted."""
        self.lost_before, self.retries_before = self.lost, self.retries
        if self.source is not None:
            self.source.close()
        self.source = None


class LedgerSources:
    """The sources of one directory. One thread uses it."""

    def __init__(
        self,
        directory: Path,
        *,
        price_per_hour: float | None = None,
        verdict_window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        self.directory = directory
        self._price_per_hour, self._window_seconds = price_per_hour, verdict_window_seconds
        self._buffers = Buffers()
        self._entries: dict[str, _Entry] = {}
        self._trouble: OSError | None = None

    def look(self, complete: Complete = as_it_is) -> tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]:
        """One look at every current ledger, in order of their keys. Of a directory that is there and cannot be listed,
        the one source is the directory itself, with its trouble.

        Each observation is judged with what `complete` adds to it.
        """
        began_ns = time.monotonic_ns()
        self._refresh()
        looked = [self._look(key, entry, complete) for key, entry in self._entries.items()]
        observations = tuple(observation for observation, _ in looked if observation is not None)
        return observations, tuple(health for _, health in looked) + self._unlisted(began_ns)

    def source(self, key: str) -> LedgerSource | None:
        """What reads the ledger of `engine:rank`, None when nothing does."""
        entry = self._entries.get(key)
        return entry.source if entry else None

    def close(self) -> None:
        """Release every file."""
        for entry in self._entries.values():
            entry.release()
        self._entries.clear()

    def _refresh(self) -> None:
        files = self._scan()
        for key in [key for key in self._entries if key not in files]:
            self._entries.pop(key).release()
            logger.info("source=%s released=true", key)
        for key, file in files.items():
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = _Entry(file)
            elif entry.file != file:
                entry.release()
                entry.file = file
        self._entries = dict(sorted(self._entries.items()))

    def _scan(self) -> dict[str, LedgerFile]:
        files: dict[str, LedgerFile] = {}
        trouble: OSError | None = None
        try:
            files = scan(self.directory)
        except OSError as error:
            trouble = error
        if str(trouble) != str(self._trouble):
            if isinstance(trouble, FileNotFoundError):  # no error: the first engine makes it
                logger.info("waiting for %s to appear", self.directory)
            else:
                logger.log(
                    logging.WARNING if trouble else logging.INFO,
                    "directory=%s readable=%s error=%s",
                    self.directory,
                    trouble is None,
                    trouble,
                )
        self._trouble = trouble
        return files

    def _unlisted(self, began_ns: int) -> tuple[SourceHealth, ...]:
        """The directory as a source, where it cannot be listed: what nobody can see must not look like no engine."""
        trouble = self._trouble
        if trouble is None or isinstance(trouble, FileNotFoundError):
            return ()
        remedy = "run it under the engine's uid or in the directory's group, or give the directory of the ledgers"
        return (
            SourceHealth(
                source=str(self.directory),
                path=str(self.directory),
                success=False,
                status=status_of_error(trouble).value,
                error=f"{self.directory}: {trouble.strerror}: {remedy}",
                duration_seconds=(time.monotonic_ns() - began_ns) / NS_PER_SECOND,
                last_good_ns=None,
                events_lost=None,
                reads_retried=None,
            ),
        )

    def _look(self, key: str, entry: _Entry, complete: Complete) -> tuple[Observation | None, SourceHealth]:
        began_ns = time.monotonic_ns()
        observation, status, error = self._observe(key, entry, complete)
        ended_ns = time.monotonic_ns()
        success = error is None and status != ReadStatus.LAST_GOOD
        if success:
            entry.last_good_ns = ended_ns
        if error is not None and error != entry.error:
            logger.warning("source=%s status=%s error=%s", key, status, error)
        entry.error = error
        return observation, SourceHealth(
            source=key,
            path=str(entry.file.path),
            success=success,
            status=status,
            error=error,
            duration_seconds=(ended_ns - began_ns) / NS_PER_SECOND,
            last_good_ns=entry.last_good_ns,
            events_lost=entry.lost,
            reads_retried=entry.retries,
            overflows=entry.source.overflows if entry.source else None,
        )

    def _observe(self, key: str, entry: _Entry, complete: Complete) -> tuple[Observation | None, str, str | None]:
        try:
            if entry.source is None:
                entry.source = self._open(key, entry.file)
            observation = entry.source.look(complete=complete)
        except (LedgerUnreadable, OSError) as error:
            entry.release()
            return None, status_of_error(error).value, str(error)
        except Exception as error:
            # One ledger's trouble must not end the sampling of the others.
            logger.exception("source=%s status=%s", key, INTERNAL_ERROR)
            entry.release()
            return None, INTERNAL_ERROR, f"{type(error).__name__}: {error}"
        return observation, observation.liveness.status, None

    def _open(self, key: str, file: LedgerFile) -> LedgerSource:
        source = LedgerSource.open(
            file.path,
            self._buffers,
            price_per_hour=self._price_per_hour,
            verdict_window_seconds=self._window_seconds,
        )
        if source.identity.key != key:
            source.close()
            raise NotALedger(f"{file.path}: its name says {key!r}, its header {source.identity.key!r}")
        return source
