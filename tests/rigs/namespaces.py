"""Machines on one network, as far as sockets go: network namespaces with addresses of their own, joined by a bridge in another one.

Needs root, iproute2 and a kernel that makes namespaces, veth pairs and bridges; `why_not` says what is missing. Everything is named
by the process and a number, and removed at the end: a namespace takes its links with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CAPTURE = """
import socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL, of every link that there is
tap.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
print("ready", flush=True)
left = 1 << 30
with open(sys.argv[1], "wb", buffering=0) as file:
    while left > 0:
        packet = tap.recv(1 << 17)
        left -= file.write(packet)
"""


CARRY = """
import ctypes, fcntl, heapq, os, random, select, struct, sys, time
inner, outer, to, delay_s, lost = *sys.argv[1:4], float(sys.argv[4]), float(sys.argv[5])
libc = ctypes.CDLL(None, use_errno=True)
def tap(namespace, name):
    with open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, 0x400454ca, struct.pack("16sH14x", name.encode(), 0x1002))  # TUNSETIFF: a tap, without a header
    return file
ends = tap(inner, "eth0"), tap(outer, to)
print("ready", flush=True)
queued, number = [], 0
while True:
    pause = max(queued[0][0] - time.monotonic(), 0) if queued else None
    for file in select.select(ends, [], [], pause)[0]:
        frame = os.read(file, 1 << 16)
        if random.random() >= lost:
            number += 1
            heapq.heappush(queued, (time.monotonic() + delay_s, number, ends[file == ends[0]], frame))
    while queued and queued[0][0] <= time.monotonic():
        try:
            os.write(queued[0][2], queued[0][3])
        except OSError:
            pass  # the other end is down
        heapq.heappop(queued)
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str:
    """Return what this system lacks for namespaces, "" where they can be had."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacks = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if lacks:
        return f"network namespaces need {' and '.join(lacks)} (iproute2, util-linux)"
    try:
        with network("probe"):
            return ""
    except (subprocess.CalledProcessError, OSError) as error:
        return f"this kernel makes no network namespaces: {getattr(error, 'stderr', '') or error}"


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace: how to run something there, and its address."""

    namespace: str
    address: str

    @property
    def within(self) -> list[str]:
        """What stands before a command that runs there: its network is the namespace's, all else is this system's."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}"]


@dataclass(frozen=True, slots=True)
class Network:
    """Machines by name, and what joins them."""

    machines: dict[str, Machine]
    switch: Machine

    def cut(self, name: str) -> None:
        """Take a machine's link down."""
        _ip("-n", self.switch.namespace, "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        """Take a machine's link up again."""
        _ip("-n", self.switch.namespace, "link", "set", f"to-{name}", "up")

    @contextmanager
    def parted(self, name: str, others: Iterable[str]) -> Iterator[None]:
        """Have a machine reach none of the others, nor they it, until the `with` ends; all else reaches all of them."""
        routes = [f"{self.machines[other].address}/32" for other in others]
        for route in routes:
            _ip("-n", self.machines[name].namespace, "route", "add", "blackhole", route)
        try:
            yield
        finally:
            for route in routes:
                _ip("-n", self.machines[name].namespace, "route", "delete", "blackhole", route)

    @contextmanager
    def worse(self, name: str, delay_s: float, lost: float) -> Iterator[None]:
        """Have a machine's link take so long each way and lose a share of its packets, until the `with` ends: it is another one.

        The kernel here has no netem: a process carries every frame between two taps.
        """
        machine, switch = self.machines[name], self.switch
        self.cut(name)
        _ip("-n", machine.namespace, "link", "delete", "eth0")
        command = [sys.executable, "-c", CARRY, machine.namespace, switch.namespace, f"to-{name}"]
        with subprocess.Popen(
            [*command, str(delay_s), str(lost)], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", "the link was not made"
                _attach(switch, f"to-{name}", machine)
                yield
                assert process.poll() is None, "the link has ended early"
            finally:
                process.kill()
        _connect(switch, name, machine)

    @contextmanager
    def captured(self, file: Path) -> Iterator[None]:
        """Write every packet between machines to a file, until the `with` ends."""
        command = [*self.switch.within, sys.executable, "-c", CAPTURE, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", "the capture did not begin"
                yield
                assert process.poll() is None, "the capture has ended early"
            finally:
                process.kill()


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Make machines with the addresses 10.77.0.1, .2, ... and remove them at the end. Raises CalledProcessError."""
    mark = f"rover{os.getpid()}"
    switch = Machine(f"{mark}-switch", "")
    machines = {name: Machine(f"{mark}-{name}", f"10.77.0.{at}") for at, name in enumerate(names, 1)}
    made: list[str] = []
    try:
        for each in (switch, *machines.values()):
            _ip("netns", "add", each.namespace)
            made.append(each.namespace)
            _ip("-n", each.namespace, "link", "set", "lo", "up")
        _ip("-n", switch.namespace, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch.namespace, "link", "set", "bridge", "up")
        for name, machine in machines.items():
            _connect(switch, name, machine)
        yield Network(machines, switch)
    finally:
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _connect(switch: Machine, name: str, machine: Machine) -> None:
    of_switch = ("-n", switch.namespace)
    to = f"to-{name}"
    _ip(*of_switch, "link", "add", to, "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
    _attach(switch, to, machine)


def _attach(switch: Machine, to: str, machine: Machine) -> None:
    """Give a link's two ends to the bridge and to the machine."""
    of_switch, of_machine = ("-n", switch.namespace), ("-n", machine.namespace)
    _ip(*of_switch, "link", "set", to, "master", "bridge")
    _ip(*of_switch, "link", "set", to, "up")
    _ip(*of_machine, "address", "add", f"{machine.address}/24", "dev", "eth0")
    _ip(*of_machine, "link", "set", "eth0", "up")
