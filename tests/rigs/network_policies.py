"""What a cluster's NetworkPolicies say of connections that processes really have; the control plane of tests enforces none."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from kube_cluster import Cluster

OUTSIDE = "outside"
COMPONENT, ROLE = "app.kubernetes.io/component", "rover-bus.io/role"
ESTABLISHED, LISTENS = "01", "0A"  # states in /proc/net/tcp
LOOKS, LOOK_S = 100, 0.02
Address = tuple[str, int]


@dataclass(frozen=True)
class Place:
    """A pod, as policies see one. `name`: of its component, with its role where it is a member."""

    namespace: str
    pod: str
    address: str
    labels: dict[str, str] = field(hash=False, compare=False)

    @property
    def name(self) -> str:
        component = self.labels.get(COMPONENT, self.pod)
        return f"{self.labels[ROLE]}" if ROLE in self.labels else component


class Edge(NamedTuple):
    """A connection: `dialler` is None where no pod dialled it."""

    dialler: Place | None
    listener: Place
    port: int

    def __str__(self) -> str:
        return f"{self.dialler.name if self.dialler else OUTSIDE} -> {self.listener.name}:{self.port}"


class Sight(NamedTuple):
    """Connections between pods at one moment, and at which ports pods listen where others reach them."""

    edges: set[Edge]
    listening: set[tuple[Place, int]]


def look(cluster: Cluster, namespaces: Sequence[str]) -> Sight:
    """Return what the processes of these namespaces' pods have open, over some seconds: some connections are short."""
    processes = dict(_processes(cluster, namespaces))
    seen = Sight(set(), set())
    for _ in range(LOOKS):
        edges, listening = _sockets(processes)
        seen.edges.update(edges)
        seen.listening.update(listening)
        time.sleep(LOOK_S)
    return seen


def _sockets(processes: Mapping[int, Place]) -> Sight:
    owners = {inode: place for pid, place in processes.items() for inode in _inodes(pid)}
    ends: dict[tuple[Address, Address], Place | None] = {}
    listening: dict[Address, Place | None] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        place = owners.get(inode)
        if state == ESTABLISHED:
            ends[_address(local), _address(remote)] = place
        elif state == LISTENS:
            listening[_address(local)] = place
    edges = {
        Edge(ends[remote, local], place, local[1])
        for (local, remote), place in ends.items()
        if place is not None and local in listening and (remote, local) in ends
    }
    open_to_others = {(place, at[1]) for at, place in listening.items() if place and at[0] == place.address}
    return Sight({each for each in edges if each.dialler != each.listener}, open_to_others)


def _inodes(pid: int) -> Iterator[str]:
    """Yield the sockets that a process has open."""
    with suppress(OSError):
        for each in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if (to := os.readlink(each.path)).startswith("socket:["):
                    yield to[len("socket:[") : -1]


def _address(text: str) -> Address:
    """Read an address of /proc/net/tcp: an IPv4 address as the machine has it in memory, and a port."""
    host, _, port = text.partition(":")
    return socket.inet_ntoa(int(host, 16).to_bytes(4, sys.byteorder)), int(port, 16)


def _processes(cluster: Cluster, namespaces: Sequence[str]) -> Iterator[tuple[int, Place]]:
    """Yield each process of these namespaces' pods."""
    for namespace in namespaces:
        for pod in json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json").stdout)["items"]:
            about, status = pod["metadata"], pod["status"]
            place = Place(namespace, about["name"], status.get("podIP", ""), about["labels"])
            for each in status.get("containerStatuses", []) + status.get("initContainerStatuses", []):
                if "running" in each.get("state", {}):
                    with suppress(psutil.NoSuchProcess):
                        first = psutil.Process(int(each["containerID"].removeprefix("process://")))
                        yield from ((one.pid, place) for one in (first, *first.children(recursive=True)))


# -- what policies say -----------------------------------------------------------------------------------------------------------


class Permit(NamedTuple):
    """One peer at one port (None: any), of one policy; a selector that names several values is one permit each."""

    policy: str
    namespace: str
    selects: dict[str, Any]
    peer: dict[str, Any] | None  # None: anything
    port: int | None

    def __str__(self) -> str:
        return f"{self.policy}: from {json.dumps(self.peer) if self.peer else 'anything'} to {self.port or 'any port'}"

    def covers(self, edge: Edge) -> bool:
        return (
            self.reaches(edge.listener, edge.port)
            and (self.port is None or self.port == edge.port)
            and (self.peer is None or (edge.dialler is not None and self._is_peer(edge.dialler)))
        )

    def reaches(self, place: Place, port: int) -> bool:
        """Whether it lets something in to a pod's port."""
        return (
            place.namespace == self.namespace
            and _matches(self.selects, place.labels)
            and self.port in (None, port)
        )

    def _is_peer(self, dialler: Place) -> bool:
        assert self.peer is not None
        where = self.peer.get("namespaceSelector")
        named = {"kubernetes.io/metadata.name": dialler.namespace}
        here = dialler.namespace == self.namespace if where is None else _matches(where, named)
        return here and _matches(self.peer.get("podSelector", {}), dialler.labels)


@dataclass(frozen=True)
class Policies:
    """The NetworkPolicies of some namespaces."""

    objects: list[dict[str, Any]]

    @classmethod
    def of(cls, cluster: Cluster, namespaces: Sequence[str]) -> Policies:
        found = []
        for namespace in namespaces:
            shown = cluster.kubectl("-n", namespace, "get", "networkpolicies", "-o", "json").stdout
            found += json.loads(shown)["items"]
        assert all(each["spec"]["policyTypes"] == ["Ingress"] for each in found), "egress is not compared"
        return cls(found)

    @property
    def permits(self) -> list[Permit]:
        return [
            Permit(each["metadata"]["name"], each["metadata"]["namespace"], spec["podSelector"], peer, port)
            for each in self.objects
            for spec in [each["spec"]]
            for rule in spec.get("ingress", [])
            for peer in _peers(rule)
            for port in [one["port"] for one in rule.get("ports", [])] or [None]
        ]

    def guards(self, place: Place) -> bool:
        """Whether a policy selects a pod: what no permit covers is refused then."""
        return any(
            each["metadata"]["namespace"] == place.namespace
            and _matches(each["spec"]["podSelector"], place.labels)
            for each in self.objects
        )

    def allow(self, edge: Edge) -> bool:
        return not self.guards(edge.listener) or any(each.covers(edge) for each in self.permits)


def _peers(rule: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    if "from" not in rule:
        yield None
    for peer in rule.get("from", []):
        kinds = [kind for kind in ("podSelector", "namespaceSelector") if kind in peer]
        assert set(kinds) == peer.keys(), peer
        for chosen in itertools.product(*(_single(peer[kind]) for kind in kinds)):
            yield dict(zip(kinds, chosen, strict=True))


def _single(selector: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a selector for each choice of values that one names."""
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions), expressions
    choices = itertools.product(*([(each["key"], value) for value in each["values"]] for each in expressions))
    return [{"matchLabels": selector.get("matchLabels", {}) | dict(chosen)} for chosen in choices]


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether labels are what a selector of labels and `In` expressions takes."""
    return any(each["matchLabels"].items() <= labels.items() for each in _single(selector))
