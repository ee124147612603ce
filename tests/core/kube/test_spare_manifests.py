"""The pod of a spare: its worker's, but for what it says of a member, its priority, and what its first process is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from rover_bus.events.identity import DesiredMember, Member
from rover_bus.kube.kinds import Json, Pod
from rover_bus.kube.pods import FINALIZER, GATE, ORDER, PodSettings, SparePods, labels_of, order_of
from rover_bus.kube.spare_manifests import admission, membership, note_of, spare_manifest, spare_ref
from rover_bus.node.port import Incarnation, Spare

SPARES = SparePods(
    priority_class="low", credential_of=lambda _spare, _host: "", member_credential_of=lambda _run, _host: ""
)
SETTINGS = PodSettings("example.com/rover", lambda _tenant: "jobs", spares=SPARES)
DESIRED = DesiredMember(member=Member("worker", 3, 2), host="h", command=["python", "t.py", "-x"])
SPARE = Spare("clicks", "u1", 4, DESIRED)


def container(made: Json) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["containers"][0]
    return found


def variables(made: Json) -> dict[str, Any]:
    return {each["name"]: each for each in container(made)["env"]}


def test_it_is_no_member_and_its_priority_is_below_whatever_a_template_says() -> None:
    template = {"metadata": {"labels": {"team": "ads"}}, "spec": {"priorityClassName": "high", "priority": 9}}
    made = spare_manifest(replace(SETTINGS, templates={"worker": template}), SPARE, "n", "m1", secret=True)
    about = made["metadata"]
    assert (made["spec"]["priorityClassName"], "priority" in made["spec"]) == ("low", False)
    assert ORDER not in about["annotations"]
    assert about["finalizers"] == []
    assert about["labels"] == {
        "team": "ads",
        "app.kubernetes.io/managed-by": "rover-bus",
        "app.kubernetes.io/component": "spare",
        "rover-bus.io/job": "clicks",
    }
    pod = msgspec.convert(made, Pod)
    note = note_of(pod.metadata)
    assert note is not None
    assert (note.maker, note.job, note.uid, note.number) == ("m1", "clicks", "u1", 4)
    assert made["spec"]["schedulingGates"] == [{"name": GATE}]


def test_its_first_process_asks_by_its_own_credential_and_knows_of_no_member() -> None:
    made = spare_manifest(SETTINGS, SPARE, "n", "m1", secret=True)
    name = made["metadata"]["name"]
    assert container(made)["command"] == ["python", "-m", "rover_bus.node.spare_pod", "python", "t.py", "-x"]
    found = variables(made)
    assert not {"ROVER_INDEX", "ROVER_INCARNATION", "ROVER_CREDENTIAL"} & found.keys()
    assert found["ROVER_SPARE_CREDENTIAL"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "credential"}
    assert (found["ROVER_SPARE"]["value"], found["ROVER_SPARES_AT"]["value"]) == (name, "n")


def test_where_all_processes_share_a_word_its_worker_has_it_as_ever() -> None:
    word = {"name": "ROVER_CREDENTIAL", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}
    template = {"spec": {"containers": [{"name": "main", "env": [word]}]}}
    made = spare_manifest(replace(SETTINGS, templates={"worker": template}), SPARE, "n", "m1", secret=False)
    assert variables(made)["ROVER_CREDENTIAL"] == word
    assert "ROVER_SPARE_CREDENTIAL" not in variables(made)
    assert "ROVER_CREDENTIAL" not in admission(Incarnation("clicks", "u1", DESIRED), "", {})


def test_no_two_makers_and_no_two_spares_have_one_name() -> None:
    made = {
        spare_ref(SETTINGS, replace(SPARE, number=number), host, maker)
        for number in (1, 2)
        for host in ("h1", "h2")
        for maker in ("m1", "m2")
    }
    assert len(made) == 8


def test_it_becomes_a_member_as_it_was_seen_and_its_process_is_told_which_one() -> None:
    run = Incarnation("clicks", "u1", DESIRED)
    made = spare_manifest(SETTINGS, SPARE, "n", "m1", secret=True)
    about = {**made["metadata"], "uid": "p1", "resourceVersion": "7", "finalizers": ["theirs"]}
    change = membership(run, "n", msgspec.convert({**made, "metadata": about}, Pod))["metadata"]
    assert (change["uid"], change["resourceVersion"]) == ("p1", "7")
    assert change["finalizers"] == ["theirs", FINALIZER]
    assert change["labels"] == labels_of("clicks", run.member)
    annotations = about["annotations"] | change["annotations"]
    pod = msgspec.convert({**made, "metadata": {**about, "annotations": annotations}}, Pod)
    order = order_of(pod.metadata)
    assert order is not None
    assert order.incarnation == run
    assert note_of(pod.metadata) is None
    told = admission(run, "secret", {"TRACEPARENT": "t"})
    assert (told["ROVER_INDEX"], told["ROVER_INCARNATION"], told["ROVER_CREDENTIAL"]) == ("3", "2", "secret")
    assert (told["ROVER_SPARES_AT"], told["TRACEPARENT"]) == ("", "t")
