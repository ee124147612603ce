"""A pod that was created gets its credential, and is let be scheduled: members, and spares.

Used by held.py and spares.py.
"""

from __future__ import annotations

from rover_bus.kube.api import ApiRefused
from rover_bus.kube.cluster import KubeCluster
from rover_bus.kube.kinds import POD, SECRET, Json, Pod
from rover_bus.kube.pods import secret_of


async def trust(cluster: KubeCluster, pod: Pod, credential: str, agent: str = "") -> Pod:
    """Put credentials into the pod's Secret, its own and that of the agent beside it, and take our gate off, unless the pod was
    removed meanwhile (`remove_unborn`). Raises ApiRefused, ApiUnreachable.
    """
    api, body, ref = cluster.api, secret_of(pod, credential, agent), pod.metadata.ref
    try:
        await api.create(SECRET, ref.namespace, body)
    except ApiRefused as error:
        if error.code != "AlreadyExists":
            raise
        await api.delete(SECRET, ref)  # of a pod of this name that is gone
        await api.create(SECRET, ref.namespace, body)
    about = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
    free: Json = {"metadata": about, "spec": {"schedulingGates": None}}
    pod = await api.patch(POD, ref, free)
    cluster.pods.put(pod)
    return pod
