"""One install, one object: the Helm chart on a real API server, with pods that really run, under Pod Security `restricted`."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_chart import (
    DEFINITION,
    KEYS,
    ROWS,
    Release,
    example,
    remove_definition,
    roverjob,
    state_of,
    values_here,
)
from kube_cluster import Cluster
from patience import until

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.kube.crd import resource_definition
from rover_bus.kube.object import GROUP

GONE_S = 60.0  # an uninstallation, and the end of a namespace


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, node: str, clicks: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """A release in a namespace that enforces `restricted`; what is left of it at the end is the last test's business."""
    made = Release(cluster, "rover-chart", tmp_path_factory.mktemp("chart"))
    assert cluster.kubectl("create", "namespace", made.namespace).returncode == 0
    label = "pod-security.kubernetes.io/enforce=restricted"
    assert cluster.kubectl("label", "namespace", made.namespace, label).returncode == 0
    done = made.install(values_here(clicks))
    assert done.returncode == 0, done.stderr + made.told()
    yield made
    made.uninstall()
    remove_definition(cluster)


@pytest.fixture(scope="module")
def address(release: Release, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return release.address(tmp_path_factory.mktemp("person"))


def test_all_of_it_is_ready_without_rights_it_does_not_need(release: Release) -> None:
    assert [len(release.pods(each)) for each in ("broker", "brain", "operator")] == [1, 2, 2]
    for pod in release.get("pods", "-l", "app.kubernetes.io/instance=rover")["items"]:
        [container] = pod["spec"]["containers"]
        assert "command" not in container, "the image's entrypoint is what runs"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        mounted = [each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each]
        assert mounted == [f"rover-keys-{component}"], "what it needs of the keys, and no more"
        has_token = pod["spec"].get("automountServiceAccountToken", True)
        assert has_token == (component == "operator")
    left = release.get("sa,role,job", "-l", "app.kubernetes.io/name=rover")["items"]
    assert not [each for each in left if "prepare" in each["metadata"]["name"]], "a hook leaves nothing"


def test_a_roverjob_trains_to_its_end(release: Release, address: list[str], clicks: str) -> None:
    release.kubectl("apply", "-f", "-", given=example(clicks))
    release.until_condition("clicks", "Complete")
    shown = state_of(address, "clicks")
    assert (shown["state"], shown["committed"]) == ("completed", ROWS)
    assert release.get("rj", "clicks")["status"]["committed"] == ROWS
    release.kubectl("delete", "rj", "clicks", "--timeout=60s")
    until(lambda: not members(release), "no pod of the job", 0.5)
    until(lambda: release.secrets() == KEYS, "no credential of a member", 0.5)


def members(release: Release) -> list[str]:
    return release.pods("member")


def test_an_upgrade_keeps_the_keys_and_makes_what_is_missing(release: Release, clicks: str) -> None:
    before = release.get("secret", "rover-keys")["data"]
    release.kubectl("patch", "secret", "rover-keys", "--type=json", "-p", remove("/data/role-joiner.nk"))
    done = release.install(values_here(clicks))
    assert done.returncode == 0, done.stderr
    after = release.get("secret", "rover-keys")["data"]
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"role-joiner.nk"}
    assert base64.b64decode(after["role-joiner.nk"]).startswith(b"SA")


def remove(path: str) -> str:
    return json.dumps([{"op": "remove", "path": path}])


def test_a_definition_that_a_running_job_does_not_satisfy_is_refused_and_the_job_named(
    release: Release, clicks: str
) -> None:
    """The former release knew a key that this one does not, and a job uses it."""
    former = resource_definition()
    spec = former["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["workers"]["properties"]["colour"] = {"type": "string"}
    release.kubectl("replace", "-f", "-", given=json.dumps(with_version(release, former)))
    workers = {"count": 1, "colour": "red"}
    applied = roverjob("old", suspend=True, workers=workers)
    until(
        lambda: (
            release.cluster.kubectl("-n", release.namespace, "apply", "-f", "-", given=applied).returncode
            == 0
        ),
        "the former definition is served",
        0.5,
    )
    refused = release.install(values_here(clicks))
    assert refused.returncode != 0
    said = release.kubectl("logs", "job/rover-prepare")
    assert f"{release.namespace}/old" in said
    assert "spec.workers.colour" in said
    shown = json.dumps(release.get("crd", DEFINITION)["spec"])
    assert "colour" in shown, "nothing was changed"
    assert release.cluster.kubectl("get", "crd", "roverjobs.check.rover-bus.io").returncode != 0
    release.kubectl("delete", "rj", "old", "--timeout=30s")
    done = release.install(values_here(clicks))
    assert done.returncode == 0, done.stderr
    assert "colour" not in json.dumps(release.get("crd", DEFINITION)["spec"])


def with_version(release: Release, definition: dict[str, Any]) -> dict[str, Any]:
    about = release.get("crd", DEFINITION)["metadata"]
    return {**definition, "metadata": {**definition["metadata"], "resourceVersion": about["resourceVersion"]}}


def test_uninstalled_with_a_running_job_it_leaves_the_object_and_nothing_that_hangs(
    release: Release, address: list[str], clicks: str
) -> None:
    long = {"train": f"{clicks}/clicks_train.tsv", "batch_size": 16, "epochs": 1_000}
    job = json.loads(roverjob("long", data=long | {"schema": {"format": "criteo"}}, program=["dlrm"]))
    job["metadata"]["finalizers"] = ["example.com/theirs"]
    release.kubectl("apply", "-f", "-", given=json.dumps(job))
    until(lambda: state_of(address, "long")["committed"] > 0, "it trains", 0.5)
    assert f"{GROUP}/job" in release.get("rj", "long")["metadata"]["finalizers"]
    began = time.monotonic()
    done = release.uninstall()
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began <= GONE_S
    assert release.get("pods")["items"] == []
    assert release.get("rj", "long")["metadata"]["finalizers"] == ["example.com/theirs"]
    assert release.secrets() == []
    release.kubectl("patch", "rj", "long", "--type=merge", "-p", '{"metadata": {"finalizers": []}}')
    assert (
        release.get("sa,role,rolebinding,lease,job,pvc", "-l", "app.kubernetes.io/name=rover")["items"] == []
    )
    gone = release.cluster.kubectl("delete", "namespace", release.namespace, f"--timeout={GONE_S:.0f}s")
    assert gone.returncode == 0, gone.stderr
    assert release.cluster.kubectl("get", "crd", DEFINITION).returncode == 0


def test_a_release_uses_a_broker_that_is_there(
    cluster: Cluster, node: str, namespace: str, clicks: str, tmp_path: Path
) -> None:
    """All of its processes show the one word that this broker asks for; there are no keys to mint."""
    with EmbeddedBroker(tmp_path / "broker", host="127.0.0.4") as broker:
        release = Release(cluster, namespace, tmp_path, "other")
        word = f"--from-literal=credential={broker.secret}"
        release.kubectl("create", "secret", "generic", "word", word)
        few = {"brain": {"replicas": 1}, "operator": {"replicas": 1}}
        done = release.install(values_here(clicks) | few | {"nats": {"url": broker.url, "secret": "word"}})
        try:
            assert done.returncode == 0, done.stderr
            there = ["--url", broker.url, "--secret-file", str(broker.secret_file)]
            release.kubectl("apply", "-f", "-", given=example(clicks))
            release.until_condition("clicks", "Complete")
            assert state_of(there, "clicks")["state"] == "completed"
            assert [each["metadata"]["name"] for each in release.get("statefulsets")["items"]] == []
        finally:
            release.uninstall()
        assert release.secrets() == ["word"], "none of ours was made, and the one that is not ours stays"
