"""The policy that pins the name in a PlanAnswer to the user who creates it, as the API server holds it (docs/design/0066).

Read by service.py when an answer is about to count: what was created before the policy was in force may bear another's name.
"""

from __future__ import annotations

from msgspec import Struct

from rover_bus.kube.api import Api, ApiRefused
from rover_bus.kube.kinds import Kind, Object, Ref

SETTLES_S = 10.0  # after which each API server enforces a policy that was created
ADMISSION = "apis/admissionregistration.k8s.io/v1"


class _PolicySpec(Struct, frozen=True, kw_only=True, rename="camel"):
    failure_policy: str = "Fail"


class _BindingSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    policy_name: str = ""
    validation_actions: list[str] = []


class NamePolicy(Object, frozen=True, kw_only=True):
    spec: _PolicySpec = _PolicySpec()


class PolicyBinding(Object, frozen=True, kw_only=True):
    spec: _BindingSpec = _BindingSpec()


POLICY = Kind(ADMISSION, "validatingadmissionpolicies", NamePolicy)
BINDING = Kind(ADMISSION, "validatingadmissionpolicybindings", PolicyBinding)


async def pinned_since(api: Api, name: str) -> float | None:
    """Return the Unix time from which on names are pinned by the policy and the binding of a name; None: they are not in force.

    Raises ApiRefused where they may not be read, and ApiUnreachable.
    """
    try:
        policy, binding = await api.read(POLICY, Ref("", name)), await api.read(BINDING, Ref("", name))
    except ApiRefused as error:
        if error.status != 404:
            raise
        return None
    made = [each.metadata.creation_timestamp for each in (policy, binding)]
    denies = (
        policy.spec.failure_policy == "Fail"
        and binding.spec.policy_name == name
        and "Deny" in binding.spec.validation_actions
    )
    if not denies or None in made:
        return None
    return max(each.timestamp() for each in made if each is not None) + SETTLES_S
