"""What an operator needs of the API server, and which of it this process has not: asked by `rover doctor --namespace`.

The chart grants exactly this (`tests/kube/test_doctor.py` holds the two against each other).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from rover_bus.kube.api import Api, decoded
from rover_bus.kube.kinds import Json

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class NeededRight(NamedTuple):
    """Verbs on a kind. `resource`: with its subresource, as in a Role. `of`: all `namespaces` it follows, the `first` alone (its
    Lease), or the `cluster`. `name`: of the one object.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    of: str = "namespaces"
    name: str = ""


NEEDS = (
    NeededRight("", "pods", ("get", "list", "watch", "create", "patch", "delete")),
    NeededRight("", "pods/resize", ("patch",)),
    NeededRight("", "pods/log", ("get",)),
    NeededRight("", "configmaps", ("list", "watch", "create", "patch", "delete")),
    NeededRight("", "secrets", ("create", "delete")),
    NeededRight("", "events", ("create",)),
    NeededRight("", "resourcequotas", ("list", "watch")),
    NeededRight("rover-bus.io", "roverjobs", ("get", "list", "watch", "patch", "delete")),
    NeededRight("rover-bus.io", "roverjobs/status", ("patch",)),
    NeededRight("rover-bus.io", "plananswers", ("list", "watch", "patch")),
    NeededRight("rover-bus.io", "plananswers/status", ("patch",)),
    NeededRight("coordination.k8s.io", "leases", ("create",), "first"),
    NeededRight("coordination.k8s.io", "leases", ("get", "patch"), "first", "rover-operator"),
    NeededRight("", "nodes", ("list", "watch"), "cluster"),
    NeededRight("", "namespaces", ("get",), "cluster", "kube-system"),
)


def needs(policy: str = "") -> tuple[NeededRight, ...]:
    """Return what an operator needs. `policy`: that pins the names in answers to plans, "": it takes none."""
    group, verbs = "admissionregistration.k8s.io", ("get",)
    kinds = ("validatingadmissionpolicies", "validatingadmissionpolicybindings") if policy else ()
    return (*NEEDS, *(NeededRight(group, each, verbs, "cluster", policy) for each in kinds))


class _AccessReview(msgspec.Struct):
    class _Allowed(msgspec.Struct):
        allowed: bool = False

    status: _Allowed = msgspec.field(default_factory=_Allowed)


async def missing(api: Api, namespaces: Sequence[str], policy: str = "") -> list[str]:
    """Return what this process may not do of `needs`, a line each. Raises ApiRefused, ApiUnreachable, BadMessage."""
    found = []
    for need, verb, namespace in asked(namespaces, policy):
        resource, _, sub = need.resource.partition("/")
        attributes: Json = {
            "group": need.group,
            "resource": resource,
            "subresource": sub,
            "verb": verb,
            "namespace": namespace,
            "name": need.name,
        }
        body: Json = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        if not decoded(await api.call("POST", REVIEWS, body), _AccessReview).status.allowed:
            which = f" {need.name}" if need.name else ""
            found.append(f"{verb} {need.resource}{which}{f' in {namespace}' if namespace else ''}")
    return found


def asked(namespaces: Sequence[str], policy: str = "") -> Iterator[tuple[NeededRight, str, str]]:
    """Yield each verb of each need, with the namespace that it is asked in."""
    for need in needs(policy):
        where = {"namespaces": namespaces, "first": namespaces[:1], "cluster": ("",)}[need.of]
        for namespace in where:
            for verb in need.verbs:
                yield need, verb, namespace
