"""Two jobs of one name in two tenants, by the chart: side by side, each in its own namespace and seen there alone."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deleted_jobs import credentials, delete_in_time, is_let_in
from kube_chart import (
    KEYS,
    ROWS,
    Release,
    example,
    facts,
    listed,
    long_job,
    pods_of,
    remove_definition,
    state_of,
    values_here,
)
from kube_cluster import Cluster
from outside import rover
from patience import until

EVALUATION_ROWS = 1_000
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, node: str, clicks: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """A release with one tenant."""
    tag = uuid.uuid4().hex[:6]
    made = Release(cluster, f"rover-{tag}", tmp_path_factory.mktemp("chart"))
    for namespace in (made.namespace, *(tenant(made, each).namespace for each in ("ads", "maps"))):
        assert cluster.kubectl("create", "namespace", namespace).returncode == 0
    done = made.install(values(made, clicks, "ads"))
    assert done.returncode == 0, done.stderr + made.told()
    yield made
    made.uninstall()
    remove_definition(cluster)


def tenant(release: Release, name: str) -> Release:
    """Return the same release as it is seen in the namespace of a tenant."""
    return replace(release, namespace=f"{name}-{release.namespace}")


def values(release: Release, clicks: str, *tenants: str) -> dict[str, Any]:
    """Return values with these tenants; the namespaces of all are followed."""
    spaces = [tenant(release, each).namespace for each in ("ads", "maps")]
    wanted = [{"name": tenant(release, each).namespace, "store": "256Mi"} for each in tenants]
    few = {"brain": {"replicas": 1}, "operator": {"replicas": 1}, "spares": {"create": True}}
    return values_here(clicks) | few | {"watchNamespaces": [release.namespace, *spaces], "tenants": wanted}


@pytest.fixture(scope="module")
def address(release: Release, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return release.address(tmp_path_factory.mktemp("person"))


def address_of(release: Release, address: list[str], name: str, folder: Path) -> list[str]:
    """How people of a tenant reach the broker."""
    file, of = folder / f"{name}.creds", tenant(release, name).namespace
    words = ("--namespace", release.namespace, "--tenant", of, "--out", str(file))
    made = rover("kube", "credentials", *words, KUBECONFIG=str(release.cluster.config))
    assert made.returncode == 0, made.stderr
    return [*address[:2], "--secret-file", str(file)]


def smaller(clicks: str) -> str:
    """Return a job of the example's name that trains on the rows for evaluation."""
    return example(clicks).replace("clicks_train.tsv", "clicks_eval.tsv")


def test_two_jobs_of_one_name_train_to_their_ends_and_each_is_seen_by_its_own(
    release: Release, address: list[str], clicks: str, tmp_path: Path
) -> None:
    ads = tenant(release, "ads")
    release.kubectl("apply", "-f", "-", given=example(clicks))
    ads.kubectl("apply", "-f", "-", given=smaller(clicks))
    for each in (release, ads):
        each.until_condition("clicks", "Complete")
    figures = [each.get("rj", "clicks")["status"]["committed"] for each in (release, ads)]
    assert figures == [ROWS, EVALUATION_ROWS]
    assert {each["job"]: each["committed"] for each in listed(address)} == {
        "clicks": ROWS,
        f"{ads.namespace}/clicks": EVALUATION_ROWS,
    }
    of_ads = address_of(release, address, "ads", tmp_path)
    assert [(each["job"], each["committed"]) for each in listed(of_ads)] == [("clicks", EVALUATION_ROWS)]
    told = rover("events", "--json", *of_ads).stdout
    uids = [each.get("rj", "clicks")["metadata"]["uid"].replace("-", "")[:16] for each in (release, ads)]
    assert [each in told for each in uids] == [False, True]
    for each in (release, ads):
        each.kubectl("delete", "rj", "clicks", "--timeout=120s")


SLOW = """
import os, time
if os.environ.get("ROVER_ROLE") == "worker":
    time.sleep(1.5)  # so long a start is worth spares
"""


@pytest.fixture
def slow_starts() -> Iterator[Path]:
    """A folder that pods of any user see, by which a worker takes its time to start."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rover-slow-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "sitecustomize.py").write_text(SLOW)
        yield folder


def spares_of(release: Release) -> list[Any]:
    found: list[Any] = release.get("pods", "-l", "app.kubernetes.io/component=spare")["items"]
    return found


def test_a_worker_that_is_added_to_a_tenants_job_is_what_a_spare_becomes(
    release: Release, address: list[str], clicks: str, slow_starts: Path
) -> None:
    """Its worker and its spare reach the daemon of their node through the tenant's accounts."""
    ads = tenant(release, "ads")
    made = json.loads(long_job(clicks))
    made["spec"] |= {
        "workers": {"start": 1, "max_count": 4},
        "plan": {"mode": "observe"},
        "environment": {"PYTHONPATH": str(slow_starts)},
    }
    ads.kubectl("apply", "-f", "-", given=json.dumps(made))
    job = f"{ads.namespace}/long"
    until(lambda: len(spares_of(ads)) == 2, "two spares: the second is made once the first waits", 0.5)
    workers = len(pods_of(ads, "worker"))  # the Brain may know jobs like it
    scaled = rover("scale", job, "--workers", str(workers + 1), "--no-wait", *address)
    assert scaled.returncode == 0, scaled.stderr
    until(lambda: [each for each in facts(address, job, "host.started") if each["warm"]], "a warm start", 0.5)
    until(lambda: len(facts(address, job, "member.admitted")) == workers + 2, "it takes part", 0.5)
    ads.kubectl("delete", "rj", "long", "--timeout=120s")


def test_credentials_that_are_revoked_are_those_of_one_person_or_of_a_tenants_people(
    release: Release, address: list[str], tmp_path: Path
) -> None:
    def made(name: str) -> Path:
        (folder := tmp_path / name).mkdir()
        return Path(address_of(release, address, "ads", folder)[-1])

    def revoke(*words: str) -> None:
        done = rover(
            "kube", "revoke", "--namespace", release.namespace, *words, KUBECONFIG=str(release.cluster.config)
        )
        assert done.returncode == 0, done.stderr

    def lets_in(file: Path) -> bool:
        return is_let_in(address[1], file.read_text())

    lost, other = made("lost"), made("other")
    assert lets_in(lost)
    revoke(str(lost))
    until(lambda: not lets_in(lost), "the Brain has told the broker", 0.5)
    assert lets_in(other)
    revoke("--people-of", tenant(release, "ads").namespace)
    until(lambda: not lets_in(other), "all people of the tenant are out", 0.5)
    assert lets_in(made("again"))
    assert lets_in(Path(address[-1])), "who looks at the whole stack is not concerned"


def members(release: Release) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = release.get("pods", "-l", "app.kubernetes.io/component=member")["items"]
    return found


def is_training(release: Release) -> bool:
    return bool(release.get("rj", "long").get("status", {}).get("committed"))


def committed(release: Release) -> int:
    return int(release.get("rj", "long")["status"]["committed"])


def train_on(jobs: dict[str, Release], address: list[str]) -> None:
    """Wait until each job, by its full name, has committed more, and see that no member of it was lost."""
    before = {job: committed(each) for job, each in jobs.items()}
    until(lambda: all(committed(each) > before[job] for job, each in jobs.items()), "they train on", 0.5)
    lost = {job: facts(address, job, "member.lost") for job in jobs}
    assert not any(lost.values()), lost


def test_jobs_train_on_while_tenants_come_and_go_and_one_that_is_deleted_leaves_the_other(
    release: Release, address: list[str], clicks: str
) -> None:
    ads, maps = tenant(release, "ads"), tenant(release, "maps")
    for each in (release, ads):
        each.kubectl("apply", "-f", "-", given=long_job(clicks))
    until(lambda: all(map(is_training, (release, ads))), "both train", 0.5)
    for each in (release, ads):
        about = [pod["metadata"] for pod in members(each)]
        roles = {pod["labels"]["rover-bus.io/role"] for pod in about}
        assert roles == {"master", "worker", "ps"}, "a job of its own in each"
        secrets = {name for name in credentials(each) if "-spare-" not in name}
        assert secrets == {pod["name"] for pod in about}, "and the Secrets of its pods alone"
    keys = release.get("secret", "rover-keys")["data"]
    jobs = {"long": release, f"{ads.namespace}/long": ads}
    train_on(jobs, address)

    more = release.install(values(release, clicks, "ads", "maps"))
    assert more.returncode == 0, more.stderr + release.told()
    now = release.get("secret", "rover-keys")["data"]
    assert {name for name in keys if keys[name] != now[name]} == {"tenants", "limits"}, "no key is another"
    maps.kubectl("apply", "-f", "-", given=smaller(clicks))
    maps.until_condition("clicks", "Complete")
    train_on(jobs, address)

    fewer = release.install(values(release, clicks, "maps"))
    assert fewer.returncode == 0, fewer.stderr + release.told()
    assert release.get("secret", "rover-keys")["data"] == now, "a tenant is not removed by the list"
    train_on(jobs, address)

    stolen = next(iter(credentials(ads).values()))
    assert is_let_in(address[1], stolen)
    delete_in_time(ads, address[1], "long")
    assert ads.secrets() == []
    assert not is_let_in(address[1], stolen)
    train_on({"long": release}, address)
    assert state_of(address, f"{ads.namespace}/long")["state"] == "cancelled"
    assert release.conditions("long")["Running"] == "True"
    delete_in_time(release, address[1], "long")
    assert release.secrets() == KEYS
