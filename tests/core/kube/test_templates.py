"""What an object says of its pods, over what the operator was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from object_script import SPEC, UID

from rover_bus.events.errors import InputError
from rover_bus.events.identity import DesiredMember, Member, Role
from rover_bus.kube.kinds import Metadata, Ref
from rover_bus.kube.known_objects import Objects, ObjectSeen, evolve
from rover_bus.kube.object import STORAGE_MOUNT
from rover_bus.kube.pods import PodSettings, manifest, owners_of, read_template, ref_of
from rover_bus.kube.roverjobs import RoverJob
from rover_bus.kube.templates import template_of
from rover_bus.node.port import Incarnation

OPERATORS = {
    "metadata": {"labels": {"of": "operator", "both": "operator"}},
    "spec": {
        "nodeSelector": {"pool": "any"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "containers": [
            {"name": "main", "image": "operators/own", "volumeMounts": [{"name": "tmp", "mountPath": "/t"}]}
        ],
    },
}
TEAMS = {
    "metadata": {"labels": {"both": "team"}},
    "spec": {
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "code", "configMap": {"name": "train"}}],
        "containers": [{"name": "main", "image": "teams/own"}, {"name": "side", "image": "teams/side"}],
    },
}


def clicks(**spec: Any) -> RoverJob:
    return RoverJob(metadata=Metadata(name="clicks", namespace="team", uid=UID), spec={**SPEC, **spec})


def pod(object_: RoverJob | None, role: Role = "worker") -> Any:
    settings = PodSettings(
        "rover/image",
        lambda _: "elsewhere",
        templates={role: OPERATORS},
        object_of=lambda _job, _uid: object_,
    )
    desired = DesiredMember(member=Member(role, 0, 1), host="n", command=["train"])
    return manifest(settings, Incarnation("clicks", "u", desired), "n", secret=False)


def test_a_teams_template_goes_over_the_operators() -> None:
    made = pod(clicks(templates={"worker": TEAMS}))
    spec, (main, side) = made["spec"], made["spec"]["containers"]
    assert (main["image"], side["image"]) == ("teams/own", "teams/side")
    assert main["volumeMounts"] == [{"name": "tmp", "mountPath": "/t"}], (
        "of the operator, where the team says nothing"
    )
    assert {each["name"] for each in spec["volumes"]} == {"tmp", "code"}
    assert [each["key"] for each in spec["tolerations"]][:2] == ["spot", "gpu"]
    assert spec["nodeSelector"] == {"gpu": "yes"}
    assert (made["metadata"]["labels"]["of"], made["metadata"]["labels"]["both"]) == ("operator", "team")
    assert pod(clicks(templates={"server": TEAMS}))["spec"]["containers"][0]["image"] == "operators/own"
    assert pod(clicks(templates={"server": TEAMS}), "ps")["spec"]["containers"][0]["image"] == "teams/own"


def test_what_a_template_says_takes_no_member_from_us() -> None:
    mine = {"name": "main", "command": ["sh"], "resources": {"limits": {"cpu": "64"}}}
    spec = {"restartPolicy": "Always", "schedulingGates": [{"name": "theirs"}], "containers": [mine]}
    made = pod(clicks(templates={"worker": {"spec": spec}}))["spec"]
    assert (made["restartPolicy"], made["schedulingGates"]) == ("Never", [])
    assert made["containers"][0]["command"] == ["train"]
    assert made["containers"][0]["resources"]["limits"] == {}


def test_pods_are_beside_their_object_and_its_own() -> None:
    made = pod(clicks())
    assert made["metadata"]["namespace"] == "team"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["apiVersion"]) == ("RoverJob", UID, "rover-bus.io/v1alpha1")
    alone = pod(None)
    assert (alone["metadata"]["namespace"], alone["metadata"]["ownerReferences"]) == ("elsewhere", [])
    settings = PodSettings("i", lambda _: "elsewhere", object_of=lambda _job, _uid: clicks())
    assert ref_of(settings, "clicks", "u", Member("ps", 0, 1)).namespace == "team"
    assert owners_of(settings, "clicks", "u") == [owner]


@pytest.mark.parametrize(("own", "wanted"), [({}, "batch"), ({"priorityClassName": "own"}, "own")])
def test_a_priority_class_is_of_all_pods_whose_template_names_none(own: dict[str, Any], wanted: str) -> None:
    object_ = clicks(priorityClassName="batch", templates={"worker": {"spec": own}})
    assert pod(object_)["spec"]["priorityClassName"] == wanted
    assert "priorityClassName" not in pod(clicks())["spec"]


def test_servers_have_the_claim_or_the_secret_of_their_checkpoints() -> None:
    spec = pod(clicks(), "ps")["spec"]
    assert {"name": "rover-checkpoints", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    mount = {"name": "rover-checkpoints", "mountPath": STORAGE_MOUNT}
    assert mount in spec["containers"][0]["volumeMounts"]
    assert "rover-checkpoints" not in str(pod(clicks())), "workers read none"
    stored = pod(clicks(checkpoint={"storage": {"url": "s3://models", "secret": "keys"}}), "ps")["spec"]
    assert stored["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "rover-checkpoints" not in str(stored)


@pytest.mark.parametrize(
    "template",
    [
        {"spec": []},
        {"spec": {"containers": [{"image": "x"}]}},
        {"spec": {"volumes": {}}},
        {"metadata": {"labels": {"a": 1}}},
    ],
)
def test_what_is_no_template_is_said_and_makes_no_pod(template: Any) -> None:
    object_ = clicks(templates={"worker": template})
    state = evolve(Objects(), ObjectSeen(Ref("team", "clicks"), object_))
    assert "templates.worker is no pod template" in state.known[Ref("team", "clicks")].invalid
    with pytest.raises(InputError, match="no pod template"):
        template_of({}, object_, "worker")


def test_a_null_in_a_template_means_nothing_and_what_is_none_is_said_by_its_file(tmp_path: Path) -> None:
    """Helm writes `env: null` for a value that is empty."""
    file = tmp_path / "template.yaml"
    file.write_text(
        "spec:\n  containers:\n  - {name: main, env: null, volumeMounts: null}\n  volumes: null\n"
    )
    base = read_template(str(file))["worker"]
    assert base == {"spec": {"containers": [{"name": "main"}]}}
    team = {"spec": {"tolerations": None, "containers": [{"name": "main", "env": None}]}}
    object_ = RoverJob(metadata=Metadata(name="j", namespace="n"), spec={"templates": {"worker": team}})
    assert template_of(base, object_, "worker")["spec"] == {"containers": [{"name": "main"}]}
    file.write_text("spec:\n  containers: main\n")
    with pytest.raises(InputError, match=r"template\.yaml is no pod template"):
        read_template(str(file))
