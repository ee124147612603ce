"""Carries blows out on a site, one after another, and takes back in time what does not last: stopped processes, filled disks.

Fed by a history; `done` says what was really done, in words. A blow that finds nothing to strike does nothing.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from attack import damage, traffic
from attack.drawing import Blow, JobShape
from attack.site import Host, Site
from rover_bus.events.errors import RoverError
from rover_bus.flash.copies import copies_of
from rover_bus.flash.digests import is_digested
from rover_bus.flash.staged import find_staged
from rover_bus.node.local.layout import MemberStatus

ROLES = {"worker": "worker", "server": "ps", "master": "master"}
DIGESTED_S = 3.0
KEPT_FREE = 64 << 10
UNDO = 1000  # numbers of what takes a blow back begin here


class Blows:
    """The blows of one history, on its site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.done: list[str] = []
        self.struck: Counter[tuple[str, str]] = Counter()  # by (act, job)
        self._began_s = time.monotonic()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._undone = itertools.count()

    def strike_all(self) -> None:
        """Strike at each blow's time, and return when all is over and taken back."""
        for number, blow in enumerate(self.site.history.blows):
            heapq.heappush(self._later, (blow.at_s, number, lambda blow=blow: self._strike(blow)))
        while self._later:
            at_s, _, act = heapq.heappop(self._later)
            time.sleep(max(self._began_s + at_s - time.monotonic(), 0.0))
            act()

    def take_back_what_is_due(self) -> None:
        """End pauses and empty disks whose time has come: what waits for that would wait for ever, if it waited before us."""
        now_s = time.monotonic() - self._began_s
        due = [each for each in self._later if each[1] >= UNDO and each[0] <= now_s]
        self._later = [each for each in self._later if each not in due]
        heapq.heapify(self._later)
        for _, _, undo in sorted(due, key=lambda each: each[:2]):
            undo()

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        at_s = time.monotonic() - self._began_s + seconds
        heapq.heappush(self._later, (at_s, UNDO + next(self._undone), undo))

    def _strike(self, blow: Blow) -> None:
        chance = random.Random(blow.draw)
        host, job = self.site.hosts[blow.host], self.site.history.jobs[blow.job]
        verb, _, target = blow.act.partition("_")
        if verb in ("kill", "pause"):
            what = self._signal(blow, target, host, job, chance)
        elif target == "memory":
            what = self._fill(host.memory, blow) if verb == "fill" else self._hurt_memory(verb, job, chance)
        elif target == "storage":
            what = self._hurt_storage(verb, job, chance)
        elif target == "disk":
            what = self._fill(host.disk, blow)
        elif blow.act == "remove_logs":
            what = _remove_logs(host)
        elif blow.act == "lose_host":
            what = self._lose(self.site.hosts[-1], blow.for_s)
        else:
            what = self._send(blow.act, job, chance)
        if what:
            self.struck[blow.act, job.name] += 1
            self.done.append(f"{blow.at_s:4.1f} s {blow.act} {what}")

    # -- processes -----------------------------------------------------------------------------------------------------

    def _signal(self, blow: Blow, target: str, host: Host, job: JobShape, chance: random.Random) -> str:
        if target == "up":
            return self._restart(host)
        found = self._targets(target, host, job)
        chosen = found if target == "job" else found and [chance.choice(found)]
        number = signal.SIGKILL if blow.act.startswith("kill") else signal.SIGSTOP
        for _, pid in chosen:
            _send_signal(pid, number)
            if number == signal.SIGSTOP:
                self._after(blow.for_s, lambda pid=pid: _send_signal(pid, signal.SIGCONT))
        return ", ".join(name for name, _ in chosen)

    def _targets(self, target: str, host: Host, job: JobShape) -> list[tuple[str, int]]:
        if target in ("daemon", "brain", "broker"):
            where = host if target == "daemon" else self.site.hosts[0]
            pid = where.service(target)
            return [(f"{target} of {where.name}", pid)] if pid else []
        roles = (ROLES[target],) if target in ROLES else ()
        return [(f"{job.name} {each.member}", each.pid) for each in self.site.members(job.name, *roles)]

    def _restart(self, host: Host) -> str:
        if host.process is None or not host.runs:
            return ""
        host.process.kill()
        host.process.wait()
        host.up(self.take_back_what_is_due)
        return host.name

    def _lose(self, host: Host, seconds: float) -> str:
        if not host.runs:
            return ""
        host.lose()
        self._after(seconds, lambda: host.up(self.take_back_what_is_due))
        return f"{host.name}, back after {seconds:.1f} s"

    # -- files ---------------------------------------------------------------------------------------------------------

    def _hurt_memory(self, kind: str, job: JobShape, chance: random.Random) -> str:
        """Stop a server, damage what it staged and the daemon has digested, kill it: its successor opens it next."""
        found = [
            (each, below)
            for host in self.site.hosts
            for each in host.members(job.name, "ps")
            if list((below := host.staged / each.uid).glob(f"ps-{each.member.index}.*.slot"))
        ]
        said = []
        for each, below in found if kind == "lose" else found and [chance.choice(found)]:
            _send_signal(each.pid, signal.SIGSTOP)
            if kind == "lose":
                shutil.rmtree(below, ignore_errors=True)
                said.append(f"{each.member} all")
            elif _wait_for(lambda each=each, below=below: _are_digested(below, each)):
                said.append(f"{each.member} {self._hurt_part(kind, each, below, chance)}")
            else:
                said.append(f"{each.member} nothing, it had no digests")
            _send_signal(each.pid, signal.SIGKILL)
        return f"{job.name} {', '.join(said)}" if said else ""

    def _hurt_part(self, kind: str, server: MemberStatus, below: Path, chance: random.Random) -> str:
        """Damage the slots of a part; or whatever lies beside them, too; or the copies that other hosts hold, too."""
        part, wider = f"ps-{server.member.index}", chance.choice(("slots", "slots", "all", "copies"))
        names = damage.hurt(kind, list(below.glob(f"{part}.*{'' if wider == 'all' else '.slot'}")), chance)
        for host in self.site.hosts if wider == "copies" else ():
            copies = list((host.staged / copies_of(server.uid)).glob(f"{part}.*"))
            names += [f"copy {name} on {host.name}" for name in damage.hurt(kind, copies, chance)]
        return " ".join(names)

    def _hurt_storage(self, kind: str, job: JobShape, chance: random.Random) -> str:
        store = self.site.home / "checkpoints"
        files = list(store.glob(f"{job.name}.*/manifests/*")) + list(
            store.glob(f"{job.name}.*/parts/*/*.part")
        )
        names = damage.hurt(kind, files, chance)
        return f"{job.name} {len(names)} of {len(files)} files" if names else ""

    def _fill(self, place: Path, blow: Blow) -> str:
        """Fill a small memory or disk to the last byte, for a while; the machine's own is left alone."""
        if not place.is_mount():
            return ""
        ballast = place / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(KEPT_FREE))
        self._after(blow.for_s, lambda: ballast.unlink(missing_ok=True))
        return f"{place.parent.name} for {blow.for_s:.1f} s"

    # -- traffic -------------------------------------------------------------------------------------------------------

    def _send(self, act: str, job: JobShape, chance: random.Random) -> str:
        try:
            return traffic.send(self.site.home, act, job.name, chance)
        except (RoverError, OSError) as error:  # the broker is away just now
            return f"not sent: {error}"


def _remove_logs(host: Host) -> str:
    logs = [*(host.home / "broker").glob("*.log"), *(host.home / "services").glob("*.log")]
    logs += (host.home / "node" / "logs").rglob("*.log")
    for log in logs:
        log.unlink(missing_ok=True)
    return f"{len(logs)} logs of {host.name}"


def _are_digested(directory: Path, server: MemberStatus) -> bool:
    """Whether every cut that a stopped server has staged has its own digests: what is damaged before is not covered (P12)."""
    staged = find_staged(directory, f"ps-{server.member.index}")
    return bool(staged) and all(is_digested(found.path, found.seal) for found in staged)


def _send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for(true: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + DIGESTED_S
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def describe(blows: Iterable[Blow]) -> list[str]:
    """What was drawn, for a failure's text."""
    return [f"{blow.at_s:4.1f} s {blow.act} job {blow.job} host {blow.host}" for blow in blows]
