"""A pod is an incarnation: what is written of it is read again, and how it ended is whose doing it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.kube.endings import ending_of, taken_away
from rover_bus.kube.kinds import Json, Metadata, Pod
from rover_bus.kube.pods import (
    ASKED,
    UNSTARTED,
    PodSettings,
    asked_for,
    host_of,
    is_over,
    manifest,
    order_of,
    ran_s,
    ref_of,
    secret_of,
    stalled_by,
)
from rover_bus.kube.roverjobs import RoverJob
from rover_bus.kube.sidecars import Sidecars
from rover_bus.node.port import Incarnation

SETTINGS = PodSettings("example.com/rover", lambda tenant: f"of-{tenant}")
TIMES = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:07Z"}


def run(number: int = 1, uid: str = "u1", job: str = "clicks", **desired: Any) -> Incarnation:
    member = DesiredMember(
        member=Member("worker", 3, number), host="h", command=["python", "t.py"], **desired
    )
    return Incarnation(job, uid, member)


def test_the_name_of_a_pod_is_its_incarnations_and_its_runs() -> None:
    names = [
        ref_of(SETTINGS, each.job, each.uid, each.member).name
        for each in (run(), run(2), run(uid="u2"), run(job="team/clicks"))
    ]
    assert len(set(names)) == 4
    assert all(name.startswith("clicks-worker-3-") for name in names)
    assert names[0] == ref_of(SETTINGS, "clicks", "u1", Member("worker", 3, 1)).name


@pytest.mark.parametrize("job", ["a" * 64, "Upper_Case", "x" * 51 + "_-y"])
def test_every_name_of_a_job_makes_a_name_that_a_host_can_have(job: str) -> None:
    name = ref_of(SETTINGS, job, "u1", Member("worker", 12345, 99)).name
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert name == name.lower()


def test_what_was_ordered_is_read_from_the_pod_again() -> None:
    ordered = run(resources=Resources(cores=0.5, memory_bytes=1 << 28), environment={"A": "b"})
    made = manifest(SETTINGS, ordered, "node-1.example", secret=True)
    about = msgspec.convert(made["metadata"], Metadata, strict=False)
    order = order_of(about)
    assert order is not None
    assert (order.incarnation, order.host) == (ordered, "node-1_example")
    assert about.namespace == "of-default"


def test_a_pod_without_our_annotation_is_no_member() -> None:
    assert order_of(Metadata(annotations={"rover-bus.io/order": "{}"})) is None
    assert order_of(Metadata()) is None


def test_a_template_gives_image_and_volumes_and_the_member_stays_ours() -> None:
    container = {"name": "main", "image": "their/own", "env": [{"name": "ROVER_JOB", "value": "another"}]}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container, {"name": "side"}]}}
    settings = PodSettings("example.com/rover", lambda _: "a", templates={"worker": template})
    made = manifest(settings, run(), "n", secret=False)
    main, side = made["spec"]["containers"]
    assert (main["image"], main["command"], side) == ("their/own", ["python", "t.py"], {"name": "side"})
    assert [each["value"] for each in main["env"] if each["name"] == "ROVER_JOB"] == ["another", "clicks"]
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["spec"]["restartPolicy"] == "Never"


def test_a_server_sees_the_memory_of_its_own_job_and_no_other_member_any() -> None:
    theirs = {
        "volumes": [{"name": "work"}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "work"}]}],
    }
    settings = PodSettings(
        "example.com/rover", lambda _: "a", memory="/m", templates={"ps": {"spec": theirs}}
    )
    server = Incarnation(
        "clicks", "u1", DesiredMember(member=Member("ps", 0, 1), host="h", command=["python"])
    )
    spec = manifest(settings, server, "n", secret=False)["spec"]
    (main,) = spec["containers"]
    paths = ["/m/u1", "/m/u1-copies", "/m/u1-parity"]
    assert [each.get("hostPath") for each in spec["volumes"]] == [
        None,
        *({"path": path, "type": "Directory"} for path in paths),
    ]
    assert [each.get("mountPath") for each in main["volumeMounts"]] == [None, *paths]
    assert {"name": "ROVER_STAGING", "value": "/m"} in main["env"]
    worker = manifest(settings, run(), "n", secret=False)["spec"]
    assert worker["volumes"] == worker["containers"][0]["volumeMounts"] == []
    assert "ROVER_STAGING" not in str(worker)


@pytest.mark.parametrize("where", ["pod", "container"])
def test_a_server_that_is_another_user_than_the_nodes_agent_stages_in_its_pod(where: str) -> None:
    """The directories of a node's memory are one user's: another one could not write there."""

    def template(user: int) -> dict[str, Any]:
        security = {"securityContext": {"runAsUser": user}}
        main = {"name": "main"} | (security if where == "container" else {})
        return {"spec": {"containers": [main]} | (security if where == "pod" else {})}

    def staged(user: int) -> bool:
        theirs = RoverJob(
            metadata=Metadata(name="clicks", namespace="a", uid="u"),
            spec={"templates": {"server": template(user)}},
        )
        settings = PodSettings(
            "example.com/rover",
            lambda _: "a",
            memory="/m",
            templates={"ps": template(65532)},
            object_of=lambda _job, _uid: theirs,
        )
        server = Incarnation(
            "clicks", "u1", DesiredMember(member=Member("ps", 0, 1), host="h", command=["python"])
        )
        return "ROVER_STAGING" in str(manifest(settings, server, "n", secret=False))

    assert [staged(65532), staged(1000)] == [True, False]


def test_an_agent_beside_a_server_sees_what_it_sees_and_has_a_credential_of_its_own() -> None:
    main = {
        "name": "main",
        "securityContext": {"runAsUser": 7},
        "envFrom": [{"secretRef": {"name": "store"}}],
        "volumeMounts": [{"name": "claim", "mountPath": "/c"}],
    }
    theirs = {"initContainers": [{"name": "data"}], "containers": [main], "volumes": [{"name": "claim"}]}
    sidecars = Sidecars(
        command=["python", "-m", "agent"], size="1Gi", credential_of=lambda _run, pod: f"of {pod}"
    )
    settings = PodSettings(
        "example.com/rover",
        lambda _: "a",
        python="/py",
        environment={"ROVER_STATE_DIR": "/s"},
        templates={role: {"spec": theirs} for role in ("ps", "worker")},
        sidecars=sidecars,
    )
    server = Incarnation(
        "ads/clicks", "u1", DesiredMember(member=Member("ps", 0, 1), host="h", command=["python"])
    )
    made = manifest(settings, server, "n", secret=True)
    name, spec = made["metadata"]["name"], made["spec"]
    data, agent = spec["initContainers"]
    assert data == {"name": "data"}
    assert (agent["restartPolicy"], agent["command"]) == ("Always", ["/py", "-m", "agent"])
    [container] = spec["containers"]
    for key in ("securityContext", "envFrom", "volumeMounts", "image"):
        assert agent[key] == container[key], key
    assert spec["volumes"][-1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    told = {each["name"]: each.get("value") for each in agent["env"]}
    assert (told["ROVER_HOST"], told["ROVER_UID"], told["ROVER_JOB"]) == (name, "u1", "clicks")
    by_server = {each["name"]: each.get("value") for each in container["env"]}
    assert by_server["ROVER_STAGES_AT"] == name
    assert told["ROVER_STAGING"] == by_server["ROVER_STAGING"]
    keys = [
        each["valueFrom"]["secretKeyRef"]
        for one in (agent, container)
        for each in one["env"]
        if each["name"] == "ROVER_CREDENTIAL"
    ]
    assert keys == [{"name": name, "key": "agent"}, {"name": name, "key": "credential"}]
    worker = manifest(settings, run(), "n", secret=True)["spec"]
    assert worker["initContainers"] == [{"name": "data"}]


def test_a_credential_stands_in_no_pod_and_nothing_is_placed_before_its_secret() -> None:
    made = manifest(SETTINGS, run(), "n", secret=True)
    assert made["spec"]["schedulingGates"] == [{"name": "rover-bus.io/credential"}]
    pod = Pod(metadata=Metadata(name=made["metadata"]["name"], uid="u"))
    secret = secret_of(pod, "s3cret")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert "s3cret" not in str(made)
    assert manifest(SETTINGS, run(), "n", secret=False)["spec"]["schedulingGates"] == []


def test_cores_and_memory_are_asked_for_and_are_the_limit() -> None:
    given = asked_for(Resources(cores=1.25, memory_bytes=1 << 30))
    assert given["requests"] == given["limits"] == {"cpu": "1250m", "memory": str(1 << 30)}
    assert asked_for(Resources())["limits"] == {}


def test_hosts_of_two_nodes_are_two() -> None:
    assert host_of("a.b-c") != host_of("a-b.c")


# -- ends ----------------------------------------------------------------------------------------------------------------


def pod(*, ended: Json | None = None, running: bool = False, notes: Json | None = None, **more: Any) -> Pod:
    states = [{"terminated": {**TIMES, **ended}}] if ended is not None else []
    states += [{"running": {}}] if running else []
    metadata = {"annotations": notes or {}, **more.pop("metadata", {})}
    status = {
        "containerStatuses": [{"name": "main", "state": each} for each in states],
        "conditions": [],
        **more.pop("status", {}),
    }
    return msgspec.convert({"metadata": metadata, "status": status, **more}, Pod, strict=False)


def disrupted(reason: str) -> Json:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


ASK, DELETED = {ASKED: "asked to leave"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}
ENDS: dict[str, tuple[Pod, str]] = {
    "it completed": (pod(ended={"exitCode": 0}), "completed"),
    "it failed": (pod(ended={"exitCode": 3}), "failed"),
    "it crashed": (pod(ended={"exitCode": 139}), "crashed"),
    "it was killed": (pod(ended={"exitCode": 137}), "killed"),
    "it had no memory": (pod(ended={"exitCode": 137, "reason": "OOMKilled"}), "out_of_memory"),
    "it left when asked": (pod(ended={"exitCode": 0}, notes=ASK, metadata=DELETED), "drained"),
    "it left by the signal": (pod(ended={"exitCode": 143}, notes=ASK, metadata=DELETED), "drained"),
    "it did not leave": (pod(ended={"exitCode": 137}, notes=ASK, metadata=DELETED), "killed"),
    "a person deleted it": (pod(ended={"exitCode": 0}, metadata=DELETED), "killed"),
    "it failed while it left": (pod(ended={"exitCode": 5}, metadata=DELETED), "failed"),
    "the scheduler needed the room": (
        pod(ended={"exitCode": 143}, status=disrupted("PreemptionByScheduler")),
        "preempted",
    ),
    "it was evicted": (pod(ended={"exitCode": 0}, status=disrupted("EvictionByEvictionAPI")), "evicted"),
    "its kubelet evicted it": (pod(status={"phase": "Failed", "reason": "Evicted"}), "evicted"),
    "its node is lost": (pod(running=True, status=disrupted("DeletionByTaintManager")), "host_lost"),
    "it could not start": (pod(notes={UNSTARTED: "Unschedulable"}, metadata=DELETED), "never_started"),
    "it was asked before it ran": (pod(notes=ASK, metadata=DELETED), "drained"),
    "it was deleted before it ran": (pod(metadata=DELETED), "never_started"),
}


@pytest.mark.parametrize("what", ENDS)
def test_an_end_is_whose_doing_it_was(what: str) -> None:
    ended, reason = ENDS[what]
    if ended.status.container_statuses and ended.status.container_statuses[0].state.terminated:
        assert ran_s(ended) == 7.0
    assert is_over(ended)
    assert ending_of(ended).reason == reason


WANTED_GONE: dict[str, tuple[Pod, str]] = {
    "it left by its master's word": (pod(ended={"exitCode": 0}), "drained"),
    "it failed while it left": (pod(ended={"exitCode": 3}), "drained"),
    "it crashed all the same": (pod(ended={"exitCode": 139}), "crashed"),
    "it was killed": (pod(ended={"exitCode": 137}), "killed"),
    "it had no memory": (pod(ended={"exitCode": 137, "reason": "OOMKilled"}), "out_of_memory"),
    "it was evicted": (pod(ended={"exitCode": 0}, status=disrupted("EvictionByEvictionAPI")), "evicted"),
}


@pytest.mark.parametrize("what", WANTED_GONE)
def test_the_end_of_one_that_is_to_leave_and_whose_object_was_not_told_yet(what: str) -> None:
    """The API server is away; a worker hears from its master that it is not desired any more, and leaves."""
    ended, reason = WANTED_GONE[what]
    assert ending_of(ended, "asked to leave").reason == reason
    assert "in time" not in ending_of(ended, "asked to leave").detail, "no time was given to it"


def test_what_takes_a_pod_away_is_known_when_its_deletion_begins() -> None:
    by_hand = pod(running=True, metadata=DELETED)
    assert taken_away(by_hand) == ("killed", "its pod was deleted")
    preempted = pod(running=True, metadata=DELETED, status=disrupted("PreemptionByScheduler"))
    assert taken_away(preempted) == ("preempted", "PreemptionByScheduler: ")
    assert taken_away(pod(running=True)) is None
    assert taken_away(pod(running=True, notes=ASK, metadata=DELETED)) is None, "we asked it to leave"


def test_a_pod_waits_for_what_may_pass_by_itself() -> None:
    def scheduled(reason: str, status: str = "False") -> Json:
        said = {"type": "PodScheduled", "status": status, "reason": reason, "message": "0/1 nodes"}
        return {"status": {"phase": "Pending", "conditions": [said]}}

    def waiting(reason: str) -> Json:
        state = {"waiting": {"reason": reason, "message": "no such image"}}
        return {"status": {"phase": "Pending", "containerStatuses": [{"name": "main", "state": state}]}}

    assert stalled_by(pod(**scheduled("Unschedulable"))) == ("Unschedulable", "0/1 nodes")
    assert stalled_by(pod(**waiting("ImagePullBackOff"))) == ("ImagePullBackOff", "no such image")
    for passing in (scheduled("SchedulingGated"), scheduled("", "True"), waiting("ContainerCreating")):
        assert stalled_by(pod(**passing)) is None
    assert stalled_by(pod(**waiting("CreateContainerConfigError"))) is None
    assert stalled_by(pod(status={"phase": "Pending"})) is None


def test_a_pod_that_leaves_is_not_over_before_its_container_is() -> None:
    placed = {"spec": {"nodeName": "n"}}
    leaving = {"metadata": {**DELETED, "deletionGracePeriodSeconds": 30}}
    assert not is_over(pod(running=True, **leaving, **placed))
    assert not is_over(pod(status={"phase": "Pending"}, **leaving, **placed))
    forced = {"metadata": {**DELETED, "deletionGracePeriodSeconds": 0}}
    assert is_over(pod(running=True, **forced, **placed))


@pytest.mark.parametrize(("cores", "told"), [(1.5, ["1.5"]), (0.0, [])])
def test_a_member_is_told_the_cores_to_which_its_container_is_to_be_held(
    cores: float, told: list[str]
) -> None:
    made = manifest(SETTINGS, run(resources=Resources(cores=cores)), "node-1", secret=False)
    [main] = made["spec"]["containers"]
    assert [each["value"] for each in main["env"] if each["name"] == "ROVER_CORES"] == told
    assert ("cpu" in main["resources"]["limits"]) == bool(told)
