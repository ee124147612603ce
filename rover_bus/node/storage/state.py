"""What the persister's decider knows: tasks, the facts and observations that it takes in, and its state (P12, P14).

Kept by evolution.py, read by decider.py and the persister's shell. Apart from both, so that each can be read in one sitting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rover_bus.events.checkpoint_facts import (
    CheckpointFailed,
    CheckpointManifestOrdered,
    CheckpointOpened,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointRedundant,
    CheckpointSearchOrdered,
    CheckpointStaged,
    CheckpointSuperseded,
    HostPartDigested,
    HostPartMirrored,
    HostStorageSearched,
    PartStaged,
)
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.host_facts import HostLeft, HostStorageOpened
from rover_bus.events.job import CheckpointSpec
from rover_bus.events.settings import DEFAULTS, StorageSettings
from rover_bus.node.members import HistoryLost

Step = Literal[
    "pin", "digest", "mirror", "parity", "fetch", "search", "persist", "manifest", "prune", "sweep"
]
IN_MEMORY = ("pin", "digest", "mirror", "parity", "fetch")
Cut = tuple[int, int]  # generation, cut


@dataclass(frozen=True, slots=True)
class PartOfCut:
    """Which part of which cut of which run."""

    uid: str
    part: str
    cut: Cut


@dataclass(frozen=True, slots=True, order=True)
class StorageTask:
    """One thing to do; `part` is empty where a step concerns the whole cut, `cut` 0 where it concerns the whole job.

    A search has its own number in place of a cut's.
    """

    job: str
    uid: str
    step: Step
    cut: int = 0
    generation: int = 0
    part: str = ""

    @property
    def lane(self) -> str:
        """Tasks of one lane run one after another. A search waits for no part that is being written: the job waits for it. Nor do
        digests: until they exist a staged part is no source.
        """
        if self.step in ("search", "digest"):
            return self.step
        return "memory" if self.step in IN_MEMORY else "storage"

    @property
    def of(self) -> Cut:
        return self.generation, self.cut

    def about(self, part: str = "") -> PartOfCut:
        """Return the part of the task, or another one of its cut."""
        return PartOfCut(self.uid, part or self.part, self.of)


# -- what is taken in --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartFound:
    """A staged part is in this host's memory: seen by a look after a restart."""

    uid: str
    part: str
    cut: int
    generation: int


@dataclass(frozen=True, slots=True)
class PartNeeded:
    """A server of this host restores from a part that is not in this host's memory, or is damaged there."""

    job: str
    uid: str
    part: str
    cut: int
    generation: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A thread took the task up."""

    task: StorageTask


@dataclass(frozen=True, slots=True)
class Done:
    """The task is done, its fact is posted."""

    task: StorageTask


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The task failed for good, and that is posted: it is not begun again, and nothing is built on it."""

    task: StorageTask


@dataclass(frozen=True, slots=True)
class Failed:
    """The task did not succeed. `temporary`: the same may succeed later."""

    task: StorageTask
    reason: str
    temporary: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class CalledOff:
    """The task ended because it was called off."""

    task: StorageTask


RunFact = (
    PartStaged
    | CheckpointOpened
    | CheckpointStaged
    | CheckpointRedundant
    | CheckpointPersistOrdered
    | CheckpointManifestOrdered
    | CheckpointSearchOrdered
    | CheckpointReady
    | CheckpointSuperseded
    | CheckpointFailed
)
PartFact = HostPartDigested | HostPartMirrored | HostStorageSearched
FollowedFact = JobSubmitted | JobEnded | RunFact | HostStorageOpened | HostLeft | PartFact
TaskEvent = Begun | Done | GivenUp | Failed | CalledOff
Happening = FollowedFact | PartFound | PartNeeded | TaskEvent | HistoryLost


# -- state -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trouble:
    """A task that failed: since when, when it is tried again, and whether hope is given up."""

    since_s: float
    again_s: float
    delay_s: float
    reason: str
    hopeless: bool


@dataclass(frozen=True, slots=True)
class HeldPart:
    """Where a part of the newest digested cut lies: on its owner, and on those that hold a copy."""

    cut: Cut
    owner: str
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """Another daemon: where it serves parts (empty: nowhere), and what fails together with it."""

    address: str
    domain: str


@dataclass(frozen=True, slots=True)
class JobCheckpoints:
    """One job as far as its checkpoints concern this host. `staged`: the newest cut of each part that lies here."""

    uid: str
    spec: CheckpointSpec = field(default_factory=CheckpointSpec)
    staged: Mapping[str, Cut] = field(default_factory=dict)
    order: CheckpointPersistOrdered | None = None
    manifest: CheckpointManifestOrdered | None = None
    held: Mapping[str, HeldPart] = field(default_factory=dict)  # by part, of every host
    complete: Mapping[str, str] = field(
        default_factory=dict
    )  # the parts of the newest complete cut, and their hosts
    complete_cut: Cut = (-1, 0)
    asked: frozenset[tuple[str, Cut]] = frozenset()  # parts that servers here restore from
    search: CheckpointSearchOrdered | None = None  # not answered yet
    suspects: frozenset[Cut] = frozenset()  # that a server could not restore: retention looks at them
    ready: Cut = (-1, 0)
    opened: Cut = (-1, 0)  # the newest of all
    safe: Cut = (-1, 0)  # the newest that is ready or redundant
    closed: tuple[Cut, ...] = ()
    submitted: bool = False  # its submission is known: facts of other runs of the name are older

    @property
    def can_be_safe(self) -> bool:
        """Whether cuts are taken, and get any further than this host's memory."""
        spec = self.spec
        return self.opened > (-1, 0) and bool(spec.persist or spec.copies or spec.parity)

    def is_closed(self, cut: Cut) -> bool:
        return cut in self.closed


@dataclass(frozen=True, slots=True)
class Persisting:
    """The whole state. `running`: what threads do now; `done`: what is answered, of it `given_up` as failed; `stale` counts refused
    orders. `ended`: jobs whose memory is to be swept, by uid; `swept`: the uids of the last ones whose memory was. `patient`: what
    the operator set. `run`: the uid of the only run that is kept here, in the pod of one of its servers; "": all are.
    """

    host: str
    patient: StorageSettings = DEFAULTS.storage
    run: str = ""
    jobs: Mapping[str, JobCheckpoints] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    swept: tuple[str, ...] = ()
    peers: Mapping[str, Peer] = field(default_factory=dict)  # this host is among them
    running: frozenset[StorageTask] = frozenset()
    done: frozenset[StorageTask] = frozenset()
    given_up: frozenset[StorageTask] = frozenset()
    troubles: Mapping[StorageTask, Trouble] = field(default_factory=dict)
    stale: int = 0
