"""What a stack does about its own broker while it runs: started again when it ends, started again once a full disk has room.

Fed by the supervisor's looks (supervisor.py), feeds the terminal. Apart from stack.py because each of the two remembers what it
has said: whatever lasts is said once, however often it is tried.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from rover_bus.cli.supervisor import Backoff, Note, describe_exit
from rover_bus.events.broker import BrokerFailed, EmbeddedBroker

DISK_LOOK_S = 2.0
CERTIFICATE_LOOK_S = 3600.0
ROOM_BYTES = 8 << 20


class MendedBroker:
    """A broker that starts again when it ends without our doing. One that answers late is waited for, never ended for it.

    One outage is one end; what stands in the way of a start (a port that another program took meanwhile) is said once each.
    """

    def __init__(self, broker: EmbeddedBroker, say: Callable[[str], None], note: Note) -> None:
        self._broker, self._say, self._note, self._backoff = broker, say, note, Backoff()
        self._began_s, self._ended_s = time.monotonic(), 0.0
        self._serves = self._launched = True
        self._said: set[str] = set()  # why it could not start, since it last served

    def mend(self) -> None:
        if self._broker.running:
            self._note_service()
            return
        self._ended_s = self._ended_s or time.monotonic()
        if self._backoff.is_due():
            self._note_end()
            self._backoff.begin()
            self._launch()

    def _note_service(self) -> None:
        if self._serves or not self._broker.answers:
            return
        self._serves = True
        if self._said:
            self._said.clear()
            self._say("the broker serves again")

    def _note_end(self) -> None:
        if self._serves:
            self._say(f"the broker ended ({self._broker.last_words()}) and is started again")
            self._publish_end()
        elif self._launched and self._say_once("its process ends", self._broker.last_words()):
            self._publish_end()
        self._serves = False

    def _publish_end(self) -> None:
        if ended := self._broker.ended():
            pid, code = ended
            exit = describe_exit(code, self._broker.last_lines())
            self._note("broker", pid, exit, self._ended_s - self._began_s)

    def _launch(self) -> None:
        self._launched = False
        self._began_s, self._ended_s = time.monotonic(), 0.0
        try:
            self._broker.launch()
        except BrokerFailed as error:
            self._say_once(str(error), str(error))
        else:
            self._launched = True

    def _say_once(self, trouble: str, words: str) -> bool:
        """Say why it cannot start, unless that is said already; return whether it was not."""
        if trouble in self._said:
            return False
        self._said.add(trouble)
        self._say(f"the broker cannot start: {words}; it is tried again until it serves")
        return True


class RenewedCertificate:
    """Has what serves show a new certificate before the old one ends. `renew` makes it when its time has come. Raises OSError."""

    def __init__(self, what: str, renew: Callable[[], None], say: Callable[[str], None]) -> None:
        self._what, self._renew, self._say, self._look_at_s = what, renew, say, 0.0

    def mend(self) -> None:
        if time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + CERTIFICATE_LOOK_S
        try:
            self._renew()
        except OSError as error:
            self._say(
                f"the {self._what}'s certificate cannot be renewed ({error}): make room, it is tried again in an hour"
            )


class WatchedDisk:
    """Says once that the broker's disk is full; starts the broker again when there is room: its streams do not mend by themselves.

    Nothing that was acknowledged is lost, commits wait (P21).
    """

    def __init__(self, broker: EmbeddedBroker, say: Callable[[str], None]) -> None:
        self._broker, self._say = broker, say
        self._look_at_s, self._said = 0.0, False

    def mend(self) -> None:
        if time.monotonic() < self._look_at_s or not self._broker.running:
            return
        self._look_at_s = time.monotonic() + DISK_LOOK_S
        directory = self._broker.directory
        if self._broker.write_error() is None:
            self._said = False
            return
        if not self._said:
            self._said = True
            self._say(
                f"the disk below {directory} is full: commits wait, nothing is lost; make room "
                "(`rover forget JOB` removes an ended job), it goes on by itself"
            )
        if shutil.disk_usage(directory).free > ROOM_BYTES:
            self._broker.kill()
            self._broker.launch()
            self._say("there is room again: the broker was started again")
