"""An agent in a server's own pod, for namespaces that allow no hostPath: it keeps what its server stages (0062).

Used by pods.py. The memory is an emptyDir, which goes with the pod: what a server's successor goes back to is a copy in another
server's pod, or storage. The agent sees what its server's container sees, so that the claim of a job is within its reach; the
master knows it by the name of its pod. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rover_bus.events.subjects import split_job
from rover_bus.kube.kinds import Json
from rover_bus.kube.templates import MAIN
from rover_bus.node.port import Incarnation

AGENT = "rover-agent"
VOLUME, MOUNT = "rover-memory", "/run/rover-memory"
STAGING = f"{MOUNT}/jobs"
KEY = "agent"  # of a member's Secret
RESOURCES = {"requests": {"cpu": "50m", "memory": "96Mi"}}


@dataclass(frozen=True, kw_only=True)
class Sidecars:
    """How servers get one. command: of a node's agent; size: most memory of a pod that is staged; credential_of: a run's and its
    pod's name; "" where all processes share one word.
    """

    command: Sequence[str]
    size: str
    credential_of: Callable[[Incarnation, str], str]


def with_sidecar(spec: Json, sidecars: Sidecars, run: Incarnation, pod: str, python: str) -> Json:
    """Return the spec of a server's pod with its agent."""
    main: Json = next(each for each in spec["containers"] if each["name"] == MAIN)
    others = [each for each in spec["containers"] if each["name"] != MAIN]
    mount = {"name": VOLUME, "mountPath": MOUNT}
    found = {"name": "ROVER_STAGING", "value": STAGING}
    server = {
        **main,
        "env": [*main["env"], found, {"name": "ROVER_STAGES_AT", "value": pod}],
        "volumeMounts": [*main["volumeMounts"], mount],
    }
    agent = _agent(main, sidecars, run, pod)
    agent |= {"command": [python, *sidecars.command[1:]], "volumeMounts": server["volumeMounts"]}
    volume = {"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": sidecars.size}}
    return {
        **spec,
        "initContainers": [*spec.get("initContainers", []), agent],
        "containers": [server, *others],
        "volumes": [*spec["volumes"], volume],
    }


def _agent(main: Json, sidecars: Sidecars, run: Incarnation, pod: str) -> Json:
    tenant, job = split_job(run.job)
    environment = {each["name"]: each for each in main["env"]}
    state = environment.get("ROVER_STATE_DIR", {}).get("value", MOUNT)
    plain = {
        "ROVER_HOST": pod,
        "ROVER_TENANT": tenant,
        "ROVER_JOB": job,
        "ROVER_UID": run.uid,
        "ROVER_STAGING": STAGING,
        "ROVER_STATE_DIR": f"{state}/agent",
    }
    environment |= {key: {"name": key, "value": value} for key, value in plain.items()}
    environment["ROVER_DOMAIN"] = {
        "name": "ROVER_DOMAIN",
        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
    }
    if sidecars.credential_of(run, pod):
        taken = {"secretKeyRef": {"name": pod, "key": KEY}}
        environment["ROVER_CREDENTIAL"] = {"name": "ROVER_CREDENTIAL", "valueFrom": taken}
    kept = ("image", "imagePullPolicy", "securityContext", "envFrom")
    return {
        **{key: main[key] for key in kept if key in main},
        "name": AGENT,
        "restartPolicy": "Always",
        "env": list(environment.values()),
        "resources": RESOURCES,
    }
