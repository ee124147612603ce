"""Small jobs as RoverJobs, as a person with kubectl hands them in; and the claims that their checkpoints are stored on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube_cluster import Cluster
from small_job import SmallJob

from rover_bus.kube.object import manifest_of


def apply_job(cluster: Cluster, namespace: str, job: SmallJob) -> None:
    """Have the RoverJob of a job there. Its pods see the folder of the job; `path` of its checkpoints means a claim."""
    job.write()
    made = manifest_of(job.folder / "job.toml")
    made["spec"]["data"]["train"] = str(job.folder / made["spec"]["data"]["train"])
    if not made["spec"]["checkpoint"]:
        del made["spec"]["checkpoint"]
    done = cluster.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(made))
    assert done.returncode == 0, done.stderr


def status_of(cluster: Cluster, namespace: str, job: SmallJob) -> dict[str, Any]:
    """Return what the RoverJob of a job shows, as a user of the cluster sees it."""
    shown = cluster.kubectl("-n", namespace, "get", "rj", job.name, "-o", "json").stdout
    found: dict[str, Any] = json.loads(shown)
    return found.get("status", {})


def claim(namespace: str, name: str, folder: Path) -> str:
    """Return a claim that is bound to a folder of this machine, which any user may write into."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    size, mode = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            "capacity": size,
            "accessModes": mode,
            "storageClassName": "",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": name},
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": mode,
            "storageClassName": "",
            "volumeName": f"{namespace}-{name}",
            "resources": {"requests": size},
        },
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, wanted]})
