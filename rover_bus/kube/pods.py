"""A pod is an incarnation: how it is written, and what it says of it when it is read back. Pure.

Used by platform.py. What a successor must know stands on the pod itself: the order as an annotation, why it was asked to leave as
another, that its end is published as a third, that it stays of an ended job for people to look at as a fourth. A finalizer of ours
keeps it until its end is published. Its name holds job, role, index, incarnation and a digest of the run: to create it twice is a
conflict and no twin.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
import msgspec.yaml

from rover_bus.events.errors import InputError
from rover_bus.events.identity import DesiredMember, Member, Resources, Role
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.events.subjects import split_job
from rover_bus.flash.places import directories_of
from rover_bus.kube.kinds import ContainerStatus, Json, Metadata, Owner, Pod, Ref
from rover_bus.kube.object import API_VERSION, KIND
from rover_bus.kube.roverjobs import RoverJob
from rover_bus.kube.sidecars import KEY, Sidecars, with_sidecar
from rover_bus.kube.templates import MAIN, checked, template_of
from rover_bus.node.affinity import threads
from rover_bus.node.port import NO_MASTERS, Incarnation, RoleCommands, Spare

DOMAIN = "rover-bus.io"
ORDER, ASKED, UNSTARTED, REPORTED, KEPT = (
    f"{DOMAIN}/{each}" for each in ("order", "asked", "not-started", "reported", "kept")
)
FINALIZER = f"{DOMAIN}/end-unreported"
GATE = f"{DOMAIN}/credential"  # nothing is scheduled before its Secret is there
OURS = {"app.kubernetes.io/managed-by": "rover-bus"}
OF_MEMBERS = {**OURS, "app.kubernetes.io/component": "member"}
LOST_S = 10  # after which a pod on a node that does not answer is given up
ORDERS_KEPT = 4096  # of pods that are there: twice as many as a large cluster has
NO_TRACE: Mapping[str, str] = {}
MOST_NAME = 63  # of a pod: it is its host name too
_NO_LABEL = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of members share.

    namespace: of a tenant's jobs. templates: a pod template for each role; its container `main` is the member's. environment: of
    all members. of_masters: of masters alone. python: what `python` means in the image.
    object_of: the RoverJob that a run of a job belongs to, None for one that was handed in otherwise: its templates go over these,
    and its pods are in its namespace, and its own. adjust_patience_s: of a resize that the node puts off. memory: where each node's
    agent keeps what servers stage; a server sees the directories of its own job there. "": it stages in its pod. sidecars: an agent
    in each server's pod instead. spares: how workers are made ready before they are members; None: they are not.
    """

    image: str
    namespace: Callable[[str], str]
    commands: RoleCommands = NO_MASTERS
    environment: Mapping[str, str] = field(default_factory=dict)
    of_masters: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, Json] = field(default_factory=dict)
    python: str = OWN_PYTHON
    object_of: Callable[[str, str], RoverJob | None] = lambda _job, _uid: None
    adjust_patience_s: float = 30.0
    memory: str = ""
    sidecars: Sidecars | None = None
    spares: SparePods | None = None


@dataclass(frozen=True, kw_only=True)
class SparePods:
    """What pods of spares have. priority_class: below that of all members; credential_of: of what asks which member it becomes, and
    that of a member; "" where all processes share one word.
    """

    priority_class: str
    credential_of: Callable[[Spare, str], str]
    member_credential_of: Callable[[Incarnation, str], str]


class PodOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What was ordered, as the pod keeps it. `host`: the daemon that ordered it."""

    job: str
    uid: str
    host: str
    desired: DesiredMember

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.job, self.uid, self.desired)


def host_of(node: str) -> str:
    """Return the name of a node as subjects hold it. No node has a `_` in its name, so that no two are the same."""
    return node.replace(".", "_")


def node_of(host: str) -> str:
    """Return which node a host is."""
    return host.replace("_", ".")


def read_template(file: str) -> dict[str, Json]:
    """Return the pod template of a file (YAML or JSON), for every role; "": none. Raises InputError."""
    if not file:
        return {}
    try:
        template = msgspec.yaml.decode(Path(file).read_bytes(), type=Json)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{file} holds no pod template ({error}): it has `metadata` and `spec`") from error
    return dict.fromkeys(get_args(Role), checked(template, file))


# -- names -------------------------------------------------------------------------------------------------------------------


def digest_of(job: str, uid: str) -> str:
    """Return a few letters that tell runs of jobs apart."""
    return hashlib.sha256(f"{job}\0{uid}".encode()).hexdigest()[:10]


def named(job: str, uid: str, what: str) -> str:
    """Return the name of an object of a run of a job."""
    end = f"{what}-{digest_of(job, uid)}"
    bare = _NO_LABEL.sub("-", split_job(job)[1].lower())[: MOST_NAME - len(end) - 1].strip("-") or "job"
    return f"{bare}-{end}"


def namespace_of(settings: PodSettings, job: str, uid: str) -> str:
    """Return where the pods of a run are: beside its object, whose claims and Secrets they use."""
    object_ = settings.object_of(job, uid)
    return object_.metadata.namespace if object_ else settings.namespace(split_job(job)[0])


def owners_of(settings: PodSettings, job: str, uid: str) -> list[Json]:
    """Return what an object of a run of a job goes with: the RoverJob, where there is one."""
    object_ = settings.object_of(job, uid)
    if object_ is None:
        return []
    about = object_.metadata
    return [
        msgspec.to_builtins(
            Owner(api_version=API_VERSION, kind=KIND, name=about.name, uid=about.uid, controller=True)
        )
    ]


def ref_of(settings: PodSettings, job: str, uid: str, member: Member) -> Ref:
    """Return which pod an incarnation is."""
    return Ref(namespace_of(settings, job, uid), pod_name(job, uid, member))


def pod_name(job: str, uid: str, member: Member) -> str:
    """Return what the pod of an incarnation is called."""
    return named(job, uid, f"{member.name}-{member.incarnation}")


def labels_of(job: str, member: Member) -> dict[str, str]:
    """Return what people and selectors find a member's pod by."""
    return OF_MEMBERS | {
        f"{DOMAIN}/job": split_job(job)[1],
        f"{DOMAIN}/role": member.role,
        f"{DOMAIN}/index": str(member.index),
        f"{DOMAIN}/incarnation": str(member.incarnation),
    }


# -- written -----------------------------------------------------------------------------------------------------------------


def manifest(
    settings: PodSettings, run: Incarnation, node: str, secret: bool, trace: Mapping[str, str] = NO_TRACE
) -> Json:
    """Return the pod of an incarnation that a node's daemon orders. secret: its credential is in a Secret of its name.

    trace: what its environment says of the span that it is part of.
    """
    ref, role = ref_of(settings, run.job, run.uid, run.member), run.member.role
    template = template_of(settings.templates.get(role, {}), settings.object_of(run.job, run.uid), role)
    order = PodOrder(job=run.job, uid=run.uid, host=host_of(node), desired=run.desired)
    theirs = template.get("metadata", {})
    metadata = {
        "name": ref.name,
        "namespace": ref.namespace,
        "labels": theirs.get("labels", {}) | labels_of(run.job, run.member),
        "annotations": theirs.get("annotations", {}) | {ORDER: written(order)},
        "finalizers": [FINALIZER],
        "ownerReferences": owners_of(settings, run.job, run.uid),
    }
    told = {"ROVER_SPARES_AT": host_of(node), "ROVER_UID": run.uid}  # that what it loads is known there
    more = {**trace, **told} if settings.spares is not None and role == "worker" else trace
    spec = _spec(with_environment(settings, run, more), run, node, secret, template.get("spec", {}))
    if settings.sidecars is not None and role == "ps":
        spec = with_sidecar(spec, settings.sidecars, run, ref.name, settings.python)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def with_environment(settings: PodSettings, run: Incarnation, more: Mapping[str, str]) -> PodSettings:
    """Return the settings of one pod: with more variables, and, of a master, where its spans go."""
    own = settings.of_masters if run.member.role == "master" else {}
    return replace(settings, environment={**settings.environment, **own, **more}) if own or more else settings


def _spec(settings: PodSettings, run: Incarnation, node: str, secret: bool, template: Json) -> Json:
    others = [each for each in template.get("containers", []) if each["name"] != MAIN]
    mine: Json = next((each for each in template.get("containers", []) if each["name"] == MAIN), {})
    lost = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_S} for key in lost
    ]
    staging = _staging(settings, run, user_of(template))
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_prefer(node)]}},
        **template,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s(run.desired.grace_s),
        "tolerations": [*template.get("tolerations", []), *tolerations],
        "schedulingGates": [{"name": GATE}] if secret else [],
        "containers": [_container(settings, run, mine, secret, staging), *others],
        "volumes": [*template.get("volumes", []), *(each.volume for each in staging)],
    }


class StagingPlace(NamedTuple):
    """A directory of a node's memory, as a volume and where it is mounted: at its own path, which all processes of a node share."""

    volume: Json
    mount: Json


def user_of(template: Json) -> int | None:
    """Return which user a member is, where its template says so."""
    main: Json = next((each for each in template.get("containers", []) if each["name"] == MAIN), {})
    for each in (main, template):
        user = (each.get("securityContext") or {}).get("runAsUser")
        if user is not None:
            return int(user)
    return None


def _staging(settings: PodSettings, run: Incarnation, user: int | None) -> list[StagingPlace]:
    """Where a server stages, and where its node's agent holds parts of other nodes. The agent makes them when the job is there,
    for the one user that it is: a server that is another user stages in its pod.
    """
    if not settings.memory or run.member.role != "ps":
        return []
    if user != user_of(settings.templates.get("ps", {}).get("spec", {})):
        return []
    found = []
    for kind, directory in zip(("staged", "copies", "parity"), directories_of(run.uid), strict=True):
        path, name = f"{settings.memory}/{directory}", f"rover-{kind}"
        found.append(
            StagingPlace(
                {"name": name, "hostPath": {"path": path, "type": "Directory"}},
                {"name": name, "mountPath": path},
            )
        )
    return found


def _prefer(node: str) -> Json:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"weight": 100, "preference": {"matchExpressions": [here]}}


def _container(
    settings: PodSettings, run: Incarnation, template: Json, secret: bool, staging: list[StagingPlace]
) -> Json:
    first, *rest = settings.commands.of(run.job, run.desired)
    directory = {"workingDir": run.desired.directory} if run.desired.directory else {}
    return {
        "image": settings.image,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **template,
        "name": MAIN,
        "command": [settings.python if first == OWN_PYTHON else first, *rest],
        "env": [*template.get("env", []), *_environment(settings, run, secret, bool(staging))],
        "volumeMounts": [*template.get("volumeMounts", []), *(each.mount for each in staging)],
        "resources": asked_for(run.desired.resources),
        "resizePolicy": [
            {"resourceName": each, "restartPolicy": "NotRequired"} for each in ("cpu", "memory")
        ],
        **directory,
    }


def _environment(settings: PodSettings, run: Incarnation, secret: bool, stages: bool) -> list[Json]:
    """What every platform gives a member; the node where it really is, and its address there, come from the kubelet."""
    tenant, job = split_job(run.job)
    cores = run.desired.resources.cores
    plain = {
        "PYTHONUNBUFFERED": "1",
        **settings.environment,
        **threads(cores, run.member.role),
        **run.desired.environment,
        "ROVER_JOB": job,
        "ROVER_TENANT": tenant,
        "ROVER_ROLE": run.member.role,
        "ROVER_INDEX": str(run.member.index),
        "ROVER_INCARNATION": str(run.member.incarnation),
        "ROVER_GRACE_S": f"{run.desired.grace_s / 2:g}",
        **({"ROVER_STAGING": settings.memory} if stages else {}),
        **({"ROVER_CORES": f"{cores:g}"} if cores else {}),  # whether it is held to them the member says
    }
    found = {"ROVER_HOST": "spec.nodeName", "ROVER_BIND": "status.podIP"}
    made: list[Json] = [{"name": key, "value": value} for key, value in plain.items() if key not in found]
    made += [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in found.items()]
    if secret:
        name = ref_of(settings, run.job, run.uid, run.member).name
        taken = {"secretKeyRef": {"name": name, "key": "credential"}}
        made.append({"name": "ROVER_CREDENTIAL", "valueFrom": taken})
    return made


def asked_for(resources: Resources) -> Json:
    """Return what a container asks for, and is held to: all of it, so that no neighbour can take it. Without figures: little."""
    amounts = {}
    if resources.cores > 0:
        amounts["cpu"] = f"{math.ceil(resources.cores * 1000 - 1e-6)}m"
    if resources.memory_bytes > 0:
        amounts["memory"] = str(resources.memory_bytes)
    return {"requests": {"cpu": "1m", "memory": "1Mi"} | amounts, "limits": amounts}


def secret_of(pod: Pod, credential: str, agent: str = "") -> Json:
    """Return the Secret of a member, and of the agent beside it: it goes when its pod goes."""
    about = pod.metadata
    owner = Owner(api_version="v1", kind="Pod", name=about.name, uid=about.uid)
    metadata = {
        "name": about.name,
        "labels": about.labels,
        "ownerReferences": [msgspec.to_builtins(owner)],
    }
    data = {"credential": credential} | ({KEY: agent} if agent else {})
    return {"metadata": metadata, "stringData": data, "immutable": True}


def written(order: PodOrder) -> str:
    """Return an order as its annotation."""
    return msgspec.json.encode(order).decode()


def grace_s(seconds: float) -> int:
    """Return a grace in whole seconds; 0 would take the object away before its processes are."""
    return max(1, math.ceil(seconds))


# -- read --------------------------------------------------------------------------------------------------------------------


def order_of(about: Metadata) -> PodOrder | None:
    """Return what was ordered; None for a pod that is no member of ours."""
    text = about.annotations.get(ORDER)
    return None if text is None else _order_in(text)


@functools.lru_cache(maxsize=ORDERS_KEPT)
def _order_in(text: str) -> PodOrder | None:
    """Read an annotation, once: each node's platform looks at every pod."""
    try:
        return msgspec.json.decode(text, type=PodOrder)
    except (ValueError, RecursionError):
        return None


def main_of(pod: Pod) -> ContainerStatus | None:
    """Return how the member's own container is; None before the node has it."""
    return next((each for each in pod.status.container_statuses if each.name == MAIN), None)


def is_gated(pod: Pod) -> bool:
    """Whether it waits for its credential."""
    return any(each.name == GATE for each in pod.spec.scheduling_gates)


def runs(pod: Pod) -> bool:
    main = main_of(pod)
    return main is not None and main.state.running is not None


def is_over(pod: Pod) -> bool:
    """Whether nothing of it runs any more, or its node is lost and its incarnation is fenced by the log (P5, P19)."""
    main, about = main_of(pod), pod.metadata
    if (main and main.state.terminated) or pod.status.phase in ("Succeeded", "Failed") or is_lost(pod):
        return True
    forced = about.deletion_timestamp is not None and about.deletion_grace_period_seconds == 0
    unplaced = about.deletion_timestamp is not None and not pod.spec.node_name  # never to be placed any more
    return forced or unplaced


def is_lost(pod: Pod) -> bool:
    """Whether its node is: its kubelet may never answer again."""
    why = pod.status.condition("DisruptionTarget")
    return why is not None and why.reason in ("DeletionByTaintManager", "DeletionByPodGC")


def ran_s(pod: Pod) -> float:
    """Return how long its member ran, in seconds."""
    main = main_of(pod)
    ended = main.state.terminated if main else None
    if ended is None or ended.started_at is None or ended.finished_at is None:
        return 0.0
    return max((ended.finished_at - ended.started_at).total_seconds(), 0.0)


IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


def why_not_started(pod: Pod) -> str:
    """Return in one line what keeps it from starting: what the scheduler, or the kubelet, says; "" for nothing."""
    main = main_of(pod)
    waiting = main.state.waiting if main else None
    if waiting and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
        return f"{waiting.reason}: {waiting.message}".rstrip(": ")
    return ": ".join(stalled_by(pod) or ()).rstrip(": ")


def stalled_by(pod: Pod) -> tuple[str, str] | None:
    """Return what keeps a pod from starting that may pass while it waits, by a constant and words: no node takes it, or its image
    cannot be had. None for one that was not looked at yet, or goes on.
    """
    main = main_of(pod)
    waiting = main.state.waiting if main else None
    if waiting and waiting.reason in IMAGE:
        return waiting.reason, waiting.message
    said = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    if said is None or pod.spec.node_name or said.status != "False" or said.reason == "SchedulingGated":
        return None
    return said.reason, said.message
