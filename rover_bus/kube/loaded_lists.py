"""What workers of runs said that they had loaded, one list a run for all nodes of a cluster, within bounds.

Kept by cluster.py; fed and read by spares.py. The lists are users' words: they are kept as they came, and spares of the same
run alone read them.
"""

from __future__ import annotations

from rover_bus.events.errors import BadMessage
from rover_bus.events.spare_requests import unpack

MOST_BYTES = 32 << 20  # of all lists together: those of three hundred jobs that load as much as any
Run = tuple[str, str]  # job, uid


class LoadedLists:
    """The newest list of each run."""

    def __init__(self) -> None:
        self._records: dict[Run, bytes] = {}
        self._bytes = 0

    def get(self, run: Run) -> bytes:
        """Return a run's list; empty: none is known."""
        return self._records.get(run, b"")

    def put(self, run: Run, record: bytes) -> bool:
        """Keep a list; False for one that is none, or that there is no room for."""
        bytes_ = self._bytes - len(self.get(run)) + len(record)
        if bytes_ > MOST_BYTES:
            return False
        try:
            unpack(record)
        except BadMessage:
            return False
        self._records[run], self._bytes = record, bytes_
        return True

    def forget(self, job: str) -> None:
        """Drop the lists of a job's runs."""
        for run in [run for run in self._records if run[0] == job]:
            self._bytes -= len(self._records.pop(run))
