"""Records of the job's log on the search for a checkpoint: no cut that the log knows can be restored, so storage is looked at.

Decided by master/searching.py and master/finding.py. The master never touches storage: it orders a daemon to look, and what that
daemon answers is a fact. See docs/design/0021.
"""

from __future__ import annotations

from rover_bus.events.checkpoints import StoredCheckpoint
from rover_bus.events.job import NoUsable
from rover_bus.events.record import Caused


class SearchOrdered(Caused, frozen=True, kw_only=True, tag="search.ordered"):
    """The daemon of `host` shall say what lies on storage. `detail`: why the model must be restored; `wanted`: only this cut."""

    search: int
    host: str
    detail: str
    wanted: int = 0
    anew: bool = False  # what was tried before may be tried again


class CheckpointFound(Caused, frozen=True, kw_only=True, tag="checkpoint.found"):
    """A checkpoint on storage is to be restored: all servers go back to it. `refused`: a line for each newer one that cannot be."""

    search: int
    found: StoredCheckpoint
    epoch: int
    samples: int
    settled: int = 0
    refused: list[str] = []


class NoneUsable(Caused, frozen=True, kw_only=True, tag="checkpoint.none_usable"):
    """Checkpoints lie on storage, and none can be restored: `choice` is what the job file wants then."""

    search: int
    choice: NoUsable
    problems: list[str] = []
