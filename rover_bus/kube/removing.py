"""How a pod of ours goes: our finalizer, which keeps it until its end is reported, is taken off; or the pod is deleted besides.

Used by platform.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from rover_bus.kube.api import ApiRefused
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import POD, Pod
from rover_bus.kube.pods import FINALIZER, is_gated


async def free(cluster: KubeCluster, pod: Pod, notes: Mapping[str, str]) -> None:
    """Take our finalizer off. Others' stay: the version is a precondition, and a conflict reads again."""
    about = pod.metadata
    while True:
        left = [each for each in about.finalizers if each != FINALIZER]
        body = {
            "uid": about.uid,
            "resourceVersion": about.resource_version,
            "finalizers": left,
            "annotations": dict(notes),
        }
        try:
            cluster.pods.put(await cluster.api.patch(POD, about.ref, {"metadata": body}))
            return
        except ApiRefused as error:
            if error.status == 404:
                return
            if error.status != 409:
                raise
        about = (await cluster.api.read(POD, about.ref)).metadata
        if about.uid != pod.metadata.uid:
            return


async def remove(cluster: KubeCluster, pod: Pod, notes: Mapping[str, str] = {}) -> None:
    """Delete a pod that is over, or never ran, unless that was asked for already, and let it go."""
    try:
        if pod.metadata.deletion_timestamp is None:
            await cluster.api.delete(POD, pod.metadata.ref, uid=pod.metadata.uid)
            pod = await cluster.api.read(POD, pod.metadata.ref)
        await free(cluster, pod, notes)
    except ApiRefused as error:
        if error.status not in (404, 409):
            raise


async def remove_unborn(cluster: KubeCluster, pod: Pod) -> None:
    """Delete a pod that waits for its credential; nothing, where it was given one meanwhile: then it is a member.

    Raises ApiRefused (409) where it changed since it was read, and is to be looked at again.
    """
    try:
        now = await cluster.api.read(POD, pod.metadata.ref)
        about = now.metadata
        if about.uid != pod.metadata.uid or not is_gated(now):
            return
        if about.deletion_timestamp is None:
            await cluster.api.delete(POD, about.ref, uid=about.uid, version=about.resource_version)
        await free(cluster, now, {})
    except ApiRefused as error:
        if error.status != 404:
            raise
