"""Pods that nothing looks after any more: ended ones that stay for people to look at, once their RoverJob is gone; and spares of a
former operator.

Run by operator.py while it leads. The cluster's garbage collector removes the first too, and does it alone where no operator was
there; but it takes up to half a minute to know a kind that was installed just now, and leaves what is of its objects so long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.kube.api import NOT_FOUND, ApiRefused
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import POD, Pod, Ref
from rover_bus.kube.object import KIND
from rover_bus.kube.pods import REPORTED, is_over
from rover_bus.kube.removing import remove
from rover_bus.kube.roverjobs import ROVER_JOB
from rover_bus.kube.spare_manifests import note_of
from rover_bus.kube.spares import GRACE_S

LOOK_S = 30.0  # also at what no change told of: a daemon that ended, a request that was refused
log = get_logger("rover.kube")


async def remove_leftovers(cluster: KubeCluster) -> None:
    """Follow objects and pods until cancelled; look at all of them now and then."""
    changed = asyncio.Event()

    def on_pod(ref: Ref) -> None:
        if _is_left(cluster, cluster.pods.objects.get(ref)):
            changed.set()

    def on_object(ref: Ref) -> None:
        if ref not in cluster.objects.objects:
            changed.set()

    await cluster.ready()
    unlisten = cluster.pods.listen(on_pod), cluster.objects.listen(on_object)
    try:
        while True:
            changed.clear()
            left = [ref for ref, pod in cluster.pods.objects.items() if _is_left(cluster, pod)]
            for ref in left:
                try:
                    await _remove(cluster, ref)
                except RoverError as error:
                    log.info("a pod that is left over is looked at again", pod=str(ref), why=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await changed.wait()
    finally:
        for end in unlisten:
            end()


def _object_of(pod: Pod) -> tuple[Ref, str] | None:
    """Return which RoverJob a pod belongs to, and its uid."""
    for each in pod.metadata.owner_references:
        if each.kind == KIND:
            return Ref(pod.metadata.namespace, each.name), each.uid
    return None


def _is_left(cluster: KubeCluster, pod: Pod | None) -> bool:
    """Whether all is said of a pod, nothing asks for it to go, and its object is not in the cache; or it is another's spare."""
    if pod is None or pod.metadata.deletion_timestamp is not None:
        return False
    if (note := note_of(pod.metadata)) is not None:
        return note.maker not in cluster.makers
    if not is_over(pod) or REPORTED not in pod.metadata.annotations or (owner := _object_of(pod)) is None:
        return False
    object_ = cluster.objects.objects.get(owner[0])
    return object_ is None or object_.metadata.uid != owner[1]


async def _remove(cluster: KubeCluster, ref: Ref) -> None:
    """Remove a pod, unless its object is there after all: a list may be older than a pod."""
    pod = cluster.pods.objects.get(ref)
    if pod is None or not _is_left(cluster, pod):
        return None
    about, owner = pod.metadata, _object_of(pod)
    if note_of(about) is not None or owner is None:  # as it was seen: it may become a member's meanwhile
        version = about.resource_version
        return await cluster.api.delete(POD, ref, uid=about.uid, version=version, grace_s=GRACE_S)
    try:
        if (await cluster.api.read(ROVER_JOB, owner[0])).metadata.uid == owner[1]:
            return None
    except ApiRefused as error:
        if error.code != NOT_FOUND:  # of a server that has just begun, which does not know our kind yet
            raise
    return await remove(cluster, pod)
