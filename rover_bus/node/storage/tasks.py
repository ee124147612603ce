"""The persister's tasks as its threads carry them out: what to digest, store, publish and prune, and the fact that it leads to.

Fed by `persister.py` with tasks; stands on `checkpoints.py` and the flash library. It is apart so that a daemon whose host stages
nothing never loads numpy: this module is imported by the first task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.errors import RoverError
from rover_bus.events.host_facts import HostFact
from rover_bus.flash.copies import has_good_copy, hold_copy, open_exactly
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, StorageFailed
from rover_bus.flash.location import below, last_name, parse_location
from rover_bus.flash.places import COPIES, PARITY, directories_of, job_directory
from rover_bus.flash.retention import Damaged, ReadBack
from rover_bus.flash.staged import StagedCut
from rover_bus.flash.storage import Run, run_path
from rover_bus.flash.sweep import sweep_job
from rover_bus.node.storage import checkpoints
from rover_bus.node.storage.holders import ParityGroup
from rover_bus.node.storage.parities import Parities
from rover_bus.node.storage.peers import PeerSource
from rover_bus.node.storage.rebuilding import rebuild_part
from rover_bus.node.storage.state import JobCheckpoints, PartOfCut, StorageTask
from rover_bus.node.storage.throttle import Pacing
from rover_bus.node.users import MemberUsers, acting
from rover_bus.ps.shared_secret import Secret

HELD = {"mirror": COPIES, "fetch": COPIES, "parity": PARITY}  # which step holds what for other hosts
MOST_LINES = 100  # of what cannot be used, in one answer


class TaskCalledOff(Exception):
    """Raised in a thread to end its task: the cut has ended."""


@dataclass(slots=True)
class Tasks:
    """One host's tasks. `shm`: where it stages; `storage`: where checkpoints go that name no path of their own."""

    host: str
    daemon: str
    shm: Path
    storage: Path
    secret: Secret = b""
    users: MemberUsers | None = None  # of the runs; None: all is the daemon's
    chains: dict[tuple[str, str], checkpoints.Chain] = field(default_factory=dict)  # by (uid, part)
    pins: dict[tuple[str, str], StagedCut] = field(default_factory=dict)  # ordered, not stored yet
    parities: Parities = field(init=False)
    rebuilt: set[PartOfCut] = field(default_factory=set)  # from parity
    read_back: dict[str, ReadBack] = field(default_factory=dict)  # by uid
    devices: dict[Path, int] = field(
        default_factory=dict
    )  # where this incarnation has written: the file system of each run

    def __post_init__(self) -> None:
        self.parities = Parities(self.shm)

    def _pin(self, task: StorageTask) -> None:
        former = self.pins.get((task.uid, task.part))
        self.pins[task.uid, task.part] = open_exactly(self._directory(task), task.part, *task.of)
        if former is not None:
            former.close()

    def unpin(self, uid: str, part: str = "", cut: tuple[int, int] | None = None) -> None:
        """Let go of what was ordered: of one part, or of all parts of a cut."""
        for key, staged in list(self.pins.items()):
            of = staged.seal.generation, staged.seal.cut
            if key[0] == uid and (not part or key[1] == part) and cut in (None, of):
                self.pins.pop(key, None)
                staged.close()

    def forget_chains(self, uid: str) -> None:
        """A cut that failed leaves files that may be pruned: nothing is built on them."""
        for key in [key for key in self.chains if key[0] == uid]:
            self.chains.pop(key, None)

    def carry_out(
        self,
        task: StorageTask,
        about: JobCheckpoints,
        called_off: threading.Event,
        addresses: Mapping[str, list[str]],
        group: ParityGroup | None = None,
    ) -> list[HostFact]:
        """Do one task; return the facts that it leads to. `addresses`: of daemons that may have a part in memory.

        Raises TaskCalledOff, and RoverErrors of which some may pass.
        """
        if self.users is not None and task.step != "sweep":
            self.users.of(task.uid, also=HELD.get(task.step, ""))
        with acting(self.users if task.step != "sweep" else None, task.uid):
            return self._carry_out(task, about, called_off, addresses, group)

    def _carry_out(
        self,
        task: StorageTask,
        about: JobCheckpoints,
        called_off: threading.Event,
        addresses: Mapping[str, list[str]],
        group: ParityGroup | None,
    ) -> list[HostFact]:
        try:
            if task.step == "parity" and group is not None:
                return self._keep_parity(task, about, group, addresses)
            if task.step == "prune":
                return self._prune(task, about, called_off)
            if task.step in ("mirror", "fetch"):
                fact = self._hold(task, about, addresses, called_off)
            else:
                fact = self._step(task, about, called_off)
            return [fact] if fact is not None else []
        except OSError as error:
            raise StorageFailed(f"{error.filename or task.part}: {error.strerror}") from None
        except (
            ValueError,
            LookupError,
            TypeError,
            MemoryError,
        ) as error:  # a lane must never stand still for one task
            raise BrokenCheckpoint(
                f"{task.step} of {task.part or 'the cut'} cannot be done ({error!r}): the next cut will be"
            ) from error

    def _step(self, task: StorageTask, about: JobCheckpoints, called_off: threading.Event) -> HostFact | None:
        match task.step:
            case "pin":
                self._pin(task)
            case "digest":
                size, save = checkpoints.digest_cut(
                    self._directory(task), task.part, task.generation, task.cut, _stop(called_off)
                )
                return cuts.HostPartDigested(size_bytes=size, save_number=save, **self.stamp(task))
            case "persist":
                return self._persist(task, about, called_off)
            case "manifest":
                return self._write_manifest(task, about.manifest, about) if about.manifest else None
            case "search":
                return self._search(task, about, about.search) if about.search else None
            case "sweep":
                self._sweep(task)
            case "parity":
                pass  # its group is not known any more
            case "mirror" | "fetch" | "prune":
                raise ValueError(f"{task.step} is no step of a part alone")
        return None

    def _write_manifest(
        self, task: StorageTask, order: cuts.CheckpointManifestOrdered, about: JobCheckpoints
    ) -> HostFact:
        run = self._run(task, order.path, about)
        size = checkpoints.publish_manifest(run.files, order.manifest)
        return cuts.HostManifestWritten(path=str(run.path), size_bytes=size, **self.stamp(task))

    def _keep_parity(
        self, task: StorageTask, about: JobCheckpoints, group: ParityGroup, addresses: Mapping[str, list[str]]
    ) -> list[HostFact]:
        """Bring our parity block of a group up to the cut; its parts are rebuildable from here on."""
        with ExitStack() as ends:

            def connect(part: str, differences: bool) -> PeerSource:
                source = self._connect(task, part, addresses.get(part, []), differences)
                ends.callback(source.close)
                return source

            self.parities.keep_up(task.uid, group.parts, group.holders.index(self.host), task.of, connect)
        return [
            cuts.HostPartMirrored(of=about.complete[part], parity=True, **{**self.stamp(task), "part": part})
            for part in group.parts
        ]

    def _connect(
        self, task: StorageTask, part: str, addresses: list[str], differences: bool = False
    ) -> PeerSource:
        """A connection to the first of these daemons that can be reached."""
        problem: RoverError = NoCheckpoint(f"no daemon is known that has {part} of cut {task.cut} in memory")
        for address in addresses:
            try:
                return PeerSource(address, self.secret, task.about(part), differences=differences)
            except RoverError as error:
                problem = error
        raise problem

    def _hold(
        self,
        task: StorageTask,
        about: JobCheckpoints,
        addresses: Mapping[str, list[str]],
        called_off: threading.Event,
    ) -> HostFact | None:
        """Bring a part of another host into our memory, from the first daemon that has it."""
        if task.step == "fetch" and has_good_copy(self.shm, task.uid, task.part, *task.of):
            return None  # it came meanwhile
        problem: RoverError = NoCheckpoint(
            f"no daemon is known that has {task.part} of cut {task.cut} in memory"
        )
        stop = _stop(called_off)
        for address in addresses.get(task.part, []):
            stop()
            try:
                source = PeerSource(address, self.secret, task.about())
                try:
                    hold_copy(self.shm, task.uid, task.part, source)
                finally:
                    source.close()
            except RoverError as error:
                problem = problem if problem.retry else error
                continue
            held = about.held.get(task.part)
            if task.step == "fetch" or held is None:
                return None
            return cuts.HostPartMirrored(of=held.owner, **self.stamp(task))
        if task.step == "mirror" or (about.spec.copies and not about.spec.parity):
            raise problem
        if not about.spec.parity:
            raise NoCheckpoint(str(problem))  # storage is next: no host was asked to keep a copy
        self.rebuilt.add(task.about())  # before it is there to be found
        try:
            rebuild_part(self.shm, self.secret, self.parities, task, addresses)
        except BaseException as error:
            self.rebuilt.discard(task.about())
            # A daemon that cannot be reached may be starting again, with a block in its memory.
            if isinstance(error, NoCheckpoint) and problem.retry:
                raise problem from None
            raise
        return None

    def stamp(self, task: StorageTask) -> dict[str, Any]:
        """What every fact about a part names."""
        return {
            "host": self.host,
            "job": task.job,
            "uid": task.uid,
            "cut": task.cut,
            "generation": task.generation,
            "part": task.part,
            "daemon": self.daemon,
        }

    def _persist(self, task: StorageTask, about: JobCheckpoints, called_off: threading.Event) -> HostFact:
        run = self._run(task, about.order.path if about.order else "", about)
        chain = checkpoints.store_part(
            run.files,
            self._directory(task),
            task.about(),
            codec=about.spec.codec,
            base=self.chains.get((task.uid, task.part)),
            wait=_pace(about, called_off),
        )
        self.chains[task.uid, task.part] = chain
        self.unpin(task.uid, task.part)
        return cuts.HostPartPersisted(files=checkpoints.describe_files(chain), **self.stamp(task))

    def _prune(self, task: StorageTask, about: JobCheckpoints, called_off: threading.Event) -> list[HostFact]:
        run, wait = (
            self._run(task, about.manifest.path if about.manifest else "", about),
            _pace(about, called_off),
        )
        ours = {part: chain for (uid, part), chain in self.chains.items() if uid == task.uid}
        folded = checkpoints.compact_run(run, ours.values(), wait)
        for part in folded.parts if folded else ():
            self.chains[task.uid, part.name] = replace(ours[part.name], files=part.files)
        read = self.read_back.setdefault(task.uid, ReadBack())
        aside = checkpoints.prune_run(run, about.spec.keep, about.spec.keep_every, read, about.suspects, wait)
        return [self._damaged(task, run, item) for item in aside]

    def _damaged(self, task: StorageTask, run: Run, item: Damaged) -> HostFact:
        of = {"cut": max(item.cut, 0), "generation": max(item.generation, 0)}
        return cuts.HostCheckpointDamaged(
            path=str(below(run.path, item.path)), reason=item.reason, **{**self.stamp(task), **of}
        )

    def _search(
        self, task: StorageTask, about: JobCheckpoints, order: cuts.CheckpointSearchOrdered
    ) -> cuts.HostStorageSearched:
        """Say which checkpoint is the newest of those that are asked for, by its manifest alone: a server reads the rest."""
        run = self._run(task, order.path, about)
        found, there, refused = checkpoints.search_run(
            run, {order.timeline, *order.former}, set(order.skip), order.not_before, order.wanted
        )
        return cuts.HostStorageSearched(
            **self._asked(task), found=found, there=there, refused=refused[:MOST_LINES]
        )

    def unsearched(self, task: StorageTask, problem: str) -> HostFact:
        """Say why storage could not be looked at."""
        return cuts.HostStorageSearched(**self._asked(task), problem=problem)

    def _asked(self, task: StorageTask) -> dict[str, Any]:
        return {
            "host": self.host,
            "job": task.job,
            "uid": task.uid,
            "search": task.cut,
            "daemon": self.daemon,
        }

    def _sweep(self, task: StorageTask) -> None:
        self.parities.forget(task.uid)
        self._let_go_of(task.uid)
        for name in directories_of(task.uid):
            directory = job_directory(self.shm, name)
            if directory.is_dir() and not sweep_job(directory, even_if_staged=True):
                raise StorageFailed(f"{directory} is still held by a process of its job", delay_s=1.0)

    def _let_go_of(self, uid: str) -> None:
        """What is mapped keeps its memory, whether its file has a name or not."""
        self.unpin(uid)
        self.forget_chains(uid)
        self.read_back.pop(uid, None)
        self.rebuilt.difference_update([each for each in self.rebuilt.copy() if each.uid == uid])

    def _directory(self, task: StorageTask) -> Path:
        return job_directory(self.shm, task.uid)

    def _run(self, task: StorageTask, ordered: str, about: JobCheckpoints) -> Run:
        """The run's directory: below the path that the order names, below the job's own, or below the stack's."""
        storage = parse_location(ordered or about.spec.path or self.storage)
        path = run_path(storage, task.job, task.uid)
        if last_name(storage) == last_name(path):
            path = storage
        if isinstance(path, Path):
            self._check_mounted(path, task.uid)
        return Run(job=task.job, uid=task.uid, path=path)

    def _check_mounted(self, path: Path, uid: str) -> None:
        """A mount point without its mount is an empty directory: nothing may be written below it in silence."""
        if path not in self.devices:
            if self.users is None:
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            else:
                self.users.own_storage(uid, path)
            self.devices[path] = path.stat().st_dev
        elif not path.is_dir() or path.stat().st_dev != self.devices[path]:
            raise StorageFailed(f"{path} is not there any more: is it still mounted?", delay_s=10.0)


def _stop(called_off: threading.Event) -> Callable[[], None]:
    def stop() -> None:
        if called_off.is_set():
            raise TaskCalledOff

    return stop


def _pace(about: JobCheckpoints, called_off: threading.Event) -> Callable[[int], None]:
    pacing = Pacing(about.spec.rate_bytes)

    def wait(size_bytes: int) -> None:
        if called_off.wait(pacing.take(size_bytes, time.monotonic())):
            raise TaskCalledOff

    return wait
