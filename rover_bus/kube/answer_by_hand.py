"""A person's answer to a plan, made with that person's own kubeconfig: `rover kube approve` and `reject`.

Feeds the API server with a PlanAnswer and waits for what the operator makes of it. It needs no credential of the bus, and of the
cluster no right but those of the chart's approver.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from rover_bus.events.errors import InputError, Refused
from rover_bus.kube.api import Api, decoded
from rover_bus.kube.kinds import Ref
from rover_bus.kube.plan_answers import PLAN_ANSWER, answer_of
from rover_bus.kube.roverjobs import ROVER_JOB, RoverJob

WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SETTLED_S, LOOK_S = 30.0, 0.2


class _Asker(msgspec.Struct, frozen=True):
    username: str = ""


class _Known(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _Asker = _Asker()


class _WhoAmI(msgspec.Struct, frozen=True):
    status: _Known = _Known()


async def answer_plan(
    api: Api, job: Ref, number: int | None, answer: Literal["Approve", "Reject"], reason: str
) -> str:
    """Answer the plan of a RoverJob that waits (`number`: only this one); return what became of it, in words.

    Raises Refused where none waits, or where the operator refuses the answer.
    """
    plan = number if number is not None else _waiting(await api.read(ROVER_JOB, job))
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    user = decoded(await api.call("POST", WHO_AM_I, asked), _WhoAmI).status.user_info.username
    if not user:
        raise InputError(
            "the API server names no user for this kubeconfig: `kubectl auth whoami` asks it as well"
        )
    made = await api.create(PLAN_ANSWER, job.namespace, answer_of(job.name, plan, answer, user, reason))
    try:
        async with asyncio.timeout(SETTLED_S):
            while not made.status.state:
                await asyncio.sleep(LOOK_S)
                made = await api.read(PLAN_ANSWER, made.metadata.ref)
    except TimeoutError:
        name = made.metadata.name
        return f"said; no operator took it yet: `kubectl get plananswers -n {job.namespace} {name}` shows what becomes of it"
    if made.status.state == "Refused":
        raise Refused(f"plan {plan} of RoverJob {job}: {made.status.message}", "refused")
    return f"{job}: {made.status.message}"


def _waiting(object_: RoverJob) -> int:
    """Return the number of the plan that waits, as the object shows it. Raises Refused."""
    plan = object_.status.get("plan") or {}
    number = plan.get("number")
    if plan.get("state") != "Waits" or not isinstance(number, int):
        raise Refused(f"no plan of RoverJob {object_.metadata.ref} waits for an answer", "none_waits")
    return number
