"""A spare as a pod: how it is written, and what makes it a member's (docs/design/0087). Pure.

Used by spares.py. The pod is the one that its worker would have, with three differences: it says nothing of a member, its first
process is node/spare_pod.py, and its priority is below that of all members, so that the scheduler gives its room to whatever waits
for it. When it becomes a member its object gets what every member's has: the order, the labels, our finalizer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rover_bus.events.identity import Member
from rover_bus.kube.kinds import Json, Metadata, Pod, Ref
from rover_bus.kube.pods import (
    DOMAIN,
    FINALIZER,
    ORDER,
    OURS,
    PodOrder,
    PodSettings,
    host_of,
    labels_of,
    manifest,
    named,
    namespace_of,
    written,
)
from rover_bus.kube.templates import MAIN
from rover_bus.node.local.launching import LATER
from rover_bus.node.port import Incarnation, Spare

SPARE = f"{DOMAIN}/spare"  # on its pod: whose it is
OF_SPARES = {**OURS, "app.kubernetes.io/component": "spare"}
PROGRAM = "rover_bus.node.spare_pod"
CREDENTIAL, OWN_CREDENTIAL = "ROVER_CREDENTIAL", "ROVER_SPARE_CREDENTIAL"
NOT_TOLD = (
    "ROVER_SPARES_AT",
    "ROVER_UID",
)  # a worker that a spare became does not say how long its start took
PRIORITY = ("priorityClassName", "priority", "preemptionPolicy")


class SpareNote(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a spare's pod is: `maker` is drawn by each process that leads, and no successor takes a spare over."""

    maker: str
    job: str
    uid: str
    number: int


def note_of(about: Metadata) -> SpareNote | None:
    """Return whose spare a pod is; None for one that is none, also for one that became a member."""
    text = about.annotations.get(SPARE)
    if text is None or ORDER in about.annotations:
        return None
    try:
        return msgspec.json.decode(text, type=SpareNote)
    except (ValueError, RecursionError):
        return None


def spare_ref(settings: PodSettings, spare: Spare, host: str, maker: str) -> Ref:
    """Return which pod a spare is. Numbers are a host's own, so that its name stands there too."""
    name = named(spare.job, f"{spare.uid}/{host}/{maker}", f"spare-{spare.number}")
    return Ref(namespace_of(settings, spare.job, spare.uid), name)


def spare_manifest(settings: PodSettings, spare: Spare, node: str, maker: str, secret: bool) -> Json:
    """Return the pod of a spare that a node's daemon orders. secret: its credential is in a Secret of its name."""
    assert settings.spares is not None
    likeness = Incarnation(spare.job, spare.uid, spare.desired.replace(member=Member("worker", 0, 0)))
    made, ref = manifest(settings, likeness, node, secret), spare_ref(settings, spare, host_of(node), maker)
    about, spec = made["metadata"], made["spec"]
    note = SpareNote(maker=maker, job=spare.job, uid=spare.uid, number=spare.number)
    notes = {key: value for key, value in about["annotations"].items() if key != ORDER}
    members = labels_of(likeness.job, likeness.member)
    theirs = {key: value for key, value in about["labels"].items() if key not in members}
    metadata = {
        **about,
        "name": ref.name,
        "labels": theirs | OF_SPARES | {f"{DOMAIN}/job": members[f"{DOMAIN}/job"]},
        "annotations": notes | {SPARE: msgspec.json.encode(note).decode()},
        "finalizers": [],
    }
    kept = {key: value for key, value in spec.items() if key not in PRIORITY}
    own = ref if secret else None
    containers = [_asking(each, ref, own) if each["name"] == MAIN else each for each in spec["containers"]]
    return {
        **made,
        "metadata": metadata,
        "spec": {**kept, "priorityClassName": settings.spares.priority_class, "containers": containers},
    }


def _asking(container: Json, ref: Ref, secret: Ref | None) -> Json:
    """Return the container of a worker as that of a spare, which asks by the credential in this Secret. None: by the word that all
    processes share, which the worker that it becomes shows too.
    """
    python, *_ = container["command"]
    left_out = LATER if secret is not None else tuple(each for each in LATER if each != CREDENTIAL)
    asks: list[Json] = [{"name": "ROVER_SPARE", "value": ref.name}]
    if secret is not None:
        taken = {"secretKeyRef": {"name": secret.name, "key": "credential"}}
        asks.append({"name": OWN_CREDENTIAL, "valueFrom": taken})
    return {
        **container,
        "command": [python, "-m", PROGRAM, *container["command"]],
        "env": [*(each for each in container["env"] if each["name"] not in left_out), *asks],
    }


def membership(run: Incarnation, node: str, pod: Pod) -> Json:
    """Return the change that makes a spare's pod the member's, as it was seen: a successor finds the member by it."""
    order = PodOrder(job=run.job, uid=run.uid, host=host_of(node), desired=run.desired)
    return {
        "metadata": {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resource_version,
            "labels": labels_of(run.job, run.member),
            "annotations": {ORDER: written(order)},
            "finalizers": [*dict.fromkeys((*pod.metadata.finalizers, FINALIZER))],
        }
    }


def admission(run: Incarnation, credential: str, trace: Mapping[str, str]) -> dict[str, str]:
    """Return what a spare's process is told: the variables by which a worker's differ from those of its spare."""
    found = {
        "ROVER_INDEX": str(run.member.index),
        "ROVER_INCARNATION": str(run.member.incarnation),
        **trace,
        **dict.fromkeys(NOT_TOLD, ""),
    }
    return {**found, CREDENTIAL: credential} if credential else found
