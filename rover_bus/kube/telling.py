"""Which platform a change of a pod is told to: the one of the host that ordered it, and the one that carries it.

Made by cluster.py; platforms listen. A hundred platforms share one cache of pods, and each change concerns one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeVar

from rover_bus.kube.kinds import Pod, Ref
from rover_bus.kube.pods import order_of
from rover_bus.kube.watching import Mirror, OnChange

K = TypeVar("K")


class PodsOfHosts:
    """Changes of pods, by host."""

    def __init__(self, pods: Mirror[Pod]) -> None:
        self._pods = pods
        self._hosts: defaultdict[str, list[OnChange]] = defaultdict(list)
        self._carried: defaultdict[Ref, list[OnChange]] = defaultdict(list)
        self._ordered: defaultdict[str, set[Ref]] = defaultdict(set)
        self._orderer: dict[Ref, str] = {}
        pods.listen(self._on_pod)

    def ordered(self, host: str) -> list[Pod]:
        """Return the pods that are there and that this host ordered."""
        return [self._pods.objects[ref] for ref in sorted(self._ordered.get(host, ()))]

    @property
    def hosts(self) -> Collection[str]:
        """The hosts that ordered any pod that is there."""
        return self._ordered.keys()

    def listen(self, host: str, on_change: OnChange) -> Callable[[], None]:
        """Call this after each change of a pod that this host ordered; the returned function ends that."""
        return _added(self._hosts, host, on_change)

    def carry(self, ref: Ref, on_change: OnChange) -> Callable[[], None]:
        """Call this after each change of this pod, whatever it says, and when it is gone; the returned function ends that."""
        return _added(self._carried, ref, on_change)

    def _on_pod(self, ref: Ref) -> None:
        told = list(self._carried.get(ref, ()))
        pod = self._pods.objects.get(ref)
        order = order_of(pod.metadata) if pod is not None else None
        self._note(ref, order.host if order is not None else None)
        if order is not None:
            told += [each for each in self._hosts.get(order.host, ()) if each not in told]
        for each in told:
            each(ref)

    def _note(self, ref: Ref, host: str | None) -> None:
        """A pod is of this host now; None: of none, or gone."""
        former = self._orderer.get(ref)
        if former == host:
            return
        if former is not None:
            self._ordered[former].discard(ref)
            if not self._ordered[former]:
                del self._ordered[former]
            del self._orderer[ref]
        if host is not None:
            self._ordered[host].add(ref)
            self._orderer[ref] = host


def _added(listeners: defaultdict[K, list[OnChange]], key: K, on_change: OnChange) -> Callable[[], None]:
    listeners[key].append(on_change)

    def end() -> None:
        listeners[key].remove(on_change)
        if not listeners[key]:
            del listeners[key]

    return end
