"""What the chart makes of values: an API server takes all of it, whatever is chosen; values that mean nothing are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec.yaml
import pytest
from kube_chart import CHART, documents, rendered, rules_of, values_here
from kube_cluster import Cluster

MATRIX: dict[str, dict[str, Any]] = {
    "as they are": {},
    "for evaluation": {
        "nats": {"store": {"claim": False}},
        "brain": {"replicas": 1},
        "operator": {"replicas": 1},
    },
    "a broker that is there": {"nats": {"url": "nats://nats.example:4222", "secret": "word"}},
    "a broker of three": {"nats": {"replicas": 3}},
    "a broker of three, and a class of its own": {
        "nats": {"replicas": 3, "store": {"claim": False}},
        "settings": ["leadership.master_ttl=20s"],
        "priorityClass": {"create": True},
    },
    "traces": {"traces": {"endpoint": "http://collector.example:4318"}},
    "cluster-wide rights": {"clusterWide": True, "watchNamespaces": ["default", "kube-public"]},
    "other namespaces": {
        "watchNamespaces": ["kube-public", "default"],
        "keepOnUninstall": True,
    },
    "an administrator's definition": {"definition": False, "viewerRole": False, "networkPolicies": False},
    "no answers by objects": {"planAnswers": False},
    "neither keys nor a definition to make": {
        "definition": False,
        "nats": {"url": "tls://n:4222", "secret": "w"},
    },
    "no agents": {"nodeAgent": {"mode": "none"}},
    "an agent on each node": {"nodeAgent": {"mode": "daemonset"}},
    "an agent on each node, and storage for all": {
        "nodeAgent": {
            "mode": "daemonset",
            "memory": "/mnt/memory",
            "storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}},
            "nodeSelector": {"pool": "training"},
            "tolerations": [{"operator": "Exists"}],
        },
        "settings": ["hosts.presence=8s"],
    },
    "an agent on each node, and a broker that is there": {
        "nodeAgent": {"mode": "daemonset"},
        "nats": {"url": "nats://nats.example:4222", "secret": "word"},
    },
    "tenants": {
        "watchNamespaces": ["default", "kube-public", "kube-system"],
        "tenants": [{"name": "kube-public", "store": "512Mi"}, {"name": "kube-system"}],
    },
    "a tenant, and cluster-wide rights": {
        "watchNamespaces": ["default", "kube-public"],
        "tenants": [{"name": "kube-public"}],
        "clusterWide": True,
        "nodeAgent": {"mode": "daemonset"},
        "definition": False,
    },
    "a class of its own": {"priorityClass": {"create": True}, "podDisruptionBudgets": False},
    "a class that is there": {"priorityClass": {"name": "system-cluster-critical"}},
    "no spares": {"spares": {"create": False}},
    "spares of a class that is there": {"spares": {"create": False, "name": "expendable"}},
    "spares of another value": {"spares": {"name": "expendable-workers", "value": -5}},
    "an image by digest": {
        "image": {"digest": "sha256:" + "a" * 64, "pullSecrets": [{"name": "pull"}]},
        "members": {"image": "example.com/ours:1"},
    },
    "where pods go": {
        "nodeSelector": {"pool": "control"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "settings": ["hosts.presence=8s"],
        "brain": {"planMode": "approve", "quotas": ["ads=8:32GiB"]},
        "nats": {"sync": "default", "store": {"storageClass": "fast"}},
    },
    "a template for members": values_here(),
    "a page": {
        "web": {"enabled": True, "tls": "page-tls", "tokens": "page-tokens", "names": ["rover.example"]}
    },
    "a page for all, of a broker that is there": {
        "web": {"enabled": True, "tls": "page-tls", "tokens": "page-tokens", "openMetrics": True},
        "nats": {"url": "nats://nats.example:4222", "secret": "word", "maxStore": "50Gi"},
    },
}
REFUSED: dict[str, dict[str, Any]] = {
    "a key that is none": {"brains": {}},
    "a size that is none": {"nats": {"store": {"size": "much"}}},
    "a limit that is none": {"nats": {"maxStore": "much"}},
    "a kind of agent that is none": {"nodeAgent": {"mode": "sidecars"}},
    "a memory that is no path": {"nodeAgent": {"memory": "dev/shm"}},
    "a page without a certificate": {"web": {"enabled": True, "tokens": "page-tokens"}},
    "a page without tokens": {"web": {"enabled": True, "tls": "page-tls"}},
    "spares before others": {"spares": {"value": 5}},
    "no Brain": {"brain": {"replicas": 0}},
    "a broker of two": {"nats": {"replicas": 2}},
    "a broker without a secret": {"nats": {"url": "nats://n:4222"}},
    "a tag for a digest": {"image": {"digest": "latest"}},
    "a tenant that is always there": {"watchNamespaces": ["a", "default"], "tenants": [{"name": "default"}]},
    "a tenant by its name alone": {"watchNamespaces": ["default", "ads"], "tenants": ["ads"]},
    "a tenant that no namespace can be called like": {"tenants": [{"name": "Ads"}]},
    "a tenant's limit that is none": {"tenants": [{"name": "ads", "store": "much"}]},
    "tenants of a broker that is there": {
        "watchNamespaces": ["default", "ads"],
        "tenants": [{"name": "ads"}],
        "nats": {"url": "nats://n:4222", "secret": "w"},
    },
}


def test_helm_finds_nothing_wrong(cluster: Cluster) -> None:
    done = cluster.helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_an_api_server_takes_all_of_it(cluster: Cluster, values: dict[str, Any], tmp_path: Path) -> None:
    made = rendered(cluster, values, tmp_path)
    assert made.returncode == 0, made.stderr
    tried = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", given=made.stdout)
    assert tried.returncode == 0, tried.stderr
    granted = [word for rule in rules_of(made.stdout) for words in rule.values() for word in words]
    assert [word for word in granted if "*" in word] == []
    assert {"pods", "patch"} <= {*granted}, "rules were found"


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_values_that_mean_nothing_are_refused(
    cluster: Cluster, values: dict[str, Any], tmp_path: Path
) -> None:
    made = rendered(cluster, values, tmp_path)
    assert made.returncode != 0
    assert "values don't meet the specifications of the schema" in made.stderr


@pytest.mark.parametrize(
    ("followed", "tenants", "said"),
    [
        (
            ["default"],
            ["ads"],
            "the namespace ads, which watchNamespaces does not name: set it to default,ads",
        ),
        (["default", "ads"], ["ads", "ads"], "ads is there twice"),
        (["ads", "default"], ["ads"], "the first of watchNamespaces, ads, holds what is no tenant's"),
    ],
)
def test_tenants_without_a_namespace_of_their_own_are_refused(
    followed: list[str], tenants: list[str], said: str, cluster: Cluster, tmp_path: Path
) -> None:
    listed = [{"name": each, "store": f"{number}Gi"} for number, each in enumerate(tenants, 1)]
    made = rendered(cluster, {"watchNamespaces": followed, "tenants": listed}, tmp_path)
    assert made.returncode != 0
    assert said in made.stderr


def test_a_tenant_is_named_to_what_makes_it_and_to_what_waits_for_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    values = {"watchNamespaces": ["default", "ads"], "tenants": [{"name": "ads", "store": "1Gi"}]}
    made = {
        (each["kind"], each["metadata"]["name"]): each for each in rendered_objects(cluster, values, tmp_path)
    }
    prepare = made["Job", "rover-prepare"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--tenant=ads=1GiB", "--max-store=8GiB", "--follows=default", "--follows=ads"} <= {*prepare}
    operator = made["Deployment", "rover-operator"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--tenant=ads" in operator
    brains = [brain_of(cluster, values | more, tmp_path) for more in ({}, {"tenants": [{"name": "ads"}]})]
    assert brains[0] != brains[1], "an upgrade that changes tenants starts the Brain again"


def brain_of(cluster: Cluster, values: dict[str, Any], folder: Path) -> Any:
    found = rendered_objects(cluster, values, folder)
    [brain] = [
        each for each in found if (each["kind"], each["metadata"]["name"]) == ("Deployment", "rover-brain")
    ]
    return brain["spec"]["template"]


def rendered_objects(cluster: Cluster, values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    made = rendered(cluster, values, folder)
    assert made.returncode == 0, made.stderr
    return documents(made.stdout)


def test_operators_take_answers_only_where_a_policy_pins_their_names(
    cluster: Cluster, tmp_path: Path
) -> None:
    for given in (True, False):
        made = rendered(cluster, {"planAnswers": given}, tmp_path).stdout
        assert ("--plan-answers=rover-default-answers" in made) is given
        assert ("ValidatingAdmissionPolicyBinding" in made) is given
        assert ("rover-default-approver" in made) is given


def test_what_the_broker_may_store_is_said_to_what_shows_it(cluster: Cluster, tmp_path: Path) -> None:
    page = {"enabled": True, "tls": "page-tls", "tokens": "page-tokens"}
    there = {"url": "nats://nats.example:4222", "secret": "word"}
    own = rendered(cluster, {"web": page}, tmp_path).stdout
    assert own.count("- --max-store=8GiB") == 3, "broker, Brain and page"
    assert "--max-store" not in rendered(cluster, {"web": page, "nats": there}, tmp_path).stdout
    told = rendered(cluster, {"web": page, "nats": {**there, "maxStore": "50Gi"}}, tmp_path).stdout
    assert told.count("- --max-store=50GiB") == 2, "Brain and page"


def test_what_watches_the_page_has_its_port_and_the_alerts_of_the_runbook(
    cluster: Cluster, tmp_path: Path
) -> None:
    watched = {
        "serviceMonitor": {"enabled": True, "tokenSecret": "scraper"},
        "prometheusRule": {"enabled": True},
    }
    page = {"enabled": True, "tls": "page-tls", "tokens": "page-tokens", **watched}
    made = rendered(cluster, {"web": page}, tmp_path)
    assert made.returncode == 0, made.stderr
    objects = [msgspec.yaml.decode(text) for text in made.stdout.split("\n---\n") if "kind:" in text]
    found = {each["kind"]: each for each in objects}
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["authorization"]["credentials"] == {"name": "scraper", "key": "token"}
    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    assert endpoint["port"] in {port["name"] for port in services["rover-web"]["ports"]}
    rules = CHART.parents[1] / "prometheus" / "rover.rules.yml"
    assert found["PrometheusRule"]["spec"] == msgspec.yaml.decode(rules.read_text())
