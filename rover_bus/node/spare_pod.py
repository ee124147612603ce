"""What a spare runs in a pod: it fetches what the program will load, and makes launcher.py of itself (docs/design/0087).

    python -m rover_bus.node.spare_pod PYTHON [options and program as a worker's command has them]

Started by the pod that kube/spare_manifests.py describes, in the interpreter of the program. It asks the daemon that made the pod
what to load, leaves a child that asks on, and becomes the launcher by `exec`: once its spare is admitted, the first process of the
container is the program itself, as in a pod that started cold. The launcher waits on a socket of the child, which ends once it has
handed over what the daemon said. Where it ends without a word, the launcher does too.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rover_bus.events import credentials
from rover_bus.events.bus import Bus
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import InputError, RoverError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.spare_requests import HELD_S, SpareQuestion, SpareReply, unpack
from rover_bus.events.subjects import spares
from rover_bus.node.local.launching import LOADED, launch_command

ANSWER_S = HELD_S + 3.0
AGAIN_S = 0.5  # before it asks again, where no daemon answered
ALONE_S = 120.0  # without any answer: a spare that no daemon knows serves nothing
OWN = (
    "ROVER_SPARE",
    "ROVER_SPARE_CREDENTIAL",
    "ROVER_SPARES_AT",
    "ROVER_UID",
)  # what no worker's environment has


@dataclass(frozen=True, slots=True)
class Asker:
    """Which spare this is, and whom it asks."""

    url: str
    secret: str
    host: str
    job: str
    uid: str
    pod: str

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Asker:
        """Take the variables of its pod. Raises InputError where one is missing."""
        named = {"url": "URL", "host": "SPARES_AT", "job": "JOB", "uid": "UID", "pod": "SPARE"}
        found = {key: variables.get(f"ROVER_{name}", "") for key, name in named.items()}
        if missing := [f"ROVER_{named[key]}" for key, value in found.items() if not value]:
            raise InputError(f"{', '.join(missing)} is not set: only an operator starts a spare in a pod")
        shared = partial(credentials.of_process, variables, variables.get("ROVER_SECRET_FILE", ""))
        return cls(secret=variables.get("ROVER_SPARE_CREDENTIAL") or shared(), **found)

    async def until_told(self, loaded: bool) -> SpareReply:
        """Ask until there is more to say than to wait; "gone" where no daemon answers."""
        bus: Bus | None = None
        heard_s = time.monotonic()
        try:
            while time.monotonic() < heard_s + ALONE_S:
                with suppress(RoverError):
                    bus = bus or await NatsBus.connect(self.url, secret=self.secret, name=self.pod)
                    question = SpareQuestion(uid=self.uid, pod=self.pod, loaded=loaded)
                    subject = spares(self.host, self.job)
                    said = await bus.request(subject, encode(question), timeout_s=ANSWER_S)
                    reply, heard_s = decode(said.body, SpareReply), time.monotonic()
                    if reply.what != "wait":
                        return reply
                    continue
                await asyncio.sleep(AGAIN_S)
            return SpareReply(what="gone")
        finally:
            if bus is not None:
                await bus.close()


def keep_asking(asker: Asker, launcher: socket.socket, directory: str) -> None:
    """Wait until all is loaded, ask which member this becomes, and hand that over. An end without a word ends the launcher."""
    if launcher.recv(1) != b"r":
        return
    shutil.rmtree(directory, ignore_errors=True)
    reply = asyncio.run(asker.until_told(loaded=True))
    if reply.what == "become":
        with suppress(OSError):
            launcher.sendall(json.dumps(reply.environment).encode() + b"\n")


def leave_child(asker: Asker, ours: socket.socket, theirs: socket.socket, directory: str) -> None:
    """Have a process ask on that is no child of this one, which becomes the program."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    with suppress(BaseException):
        if not os.fork():
            theirs.close()
            keep_asking(asker, ours, directory)
    os._exit(0)


def main() -> None:
    """Fetch, leave a child, become the launcher. An end with a line on stderr says why this is no spare."""
    command = sys.argv[1:]
    signal.signal(
        signal.SIGTERM, lambda *_: os._exit(143)
    )  # the first process of a container hears it only so
    asker = Asker.read(os.environ)
    reply = asyncio.run(asker.until_told(loaded=False))
    if reply.what != "load":
        sys.exit("no daemon knows this spare any more")
    directory = tempfile.mkdtemp(prefix="rover-spare-", dir=_writable())
    Path(directory, LOADED).write_bytes(unpack(reply.record))
    launched = launch_command(command, Path(directory))
    if not launched:
        sys.exit("this program can have no spare: it is no script or module of a Python")
    ours, theirs = socket.socketpair()
    leave_child(asker, ours, theirs, directory)
    ours.close()
    os.dup2(theirs.fileno(), 0)
    theirs.close()
    environment = {key: value for key, value in os.environ.items() if key not in OWN}
    os.execvpe(launched[0], launched, environment)


def _writable() -> str | None:
    """Memory, where the container has it: its root may be read-only. None: wherever this system has temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    try:
        main()
    except (RoverError, OSError) as error:
        sys.exit(str(error))
