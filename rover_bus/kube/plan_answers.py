"""A PlanAnswer: what a person on Kubernetes says of a plan that waits, as an API server returns it, and its resource definition.

Fed by watching.py through its Kind and by answering.py, which settles it; written to deploy/crd/plananswers.yaml by `make schemas`.
Why an answer is an object of its own: docs/design/0066.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from rover_bus.kube.kinds import Json, Kind, Metadata, Object
from rover_bus.kube.object import API_VERSION, GROUP, VERSION
from rover_bus.kube.structural import MOST_TEXT, Schema

ANSWER_KIND, ANSWERS = "PlanAnswer", "plananswers"
MOST_USER = 1024
# A shell puts its user's name in: the policy of the chart takes no other one.
WHOAMI = "$(kubectl auth whoami -o jsonpath={.status.userInfo.username})"


class AnswerSpec(Struct, frozen=True, kw_only=True):
    """`by`: the user's name as the API server has it, which a policy compares."""

    job: str = ""
    plan: int = 0
    answer: Literal["Approve", "Reject"] = "Reject"
    by: str = ""
    reason: str = ""


class AnswerStatus(Struct, frozen=True, kw_only=True):
    """`state` "": the operator has not settled it; Given or Refused, in words `message`."""

    state: str = ""
    message: str = ""


class PlanAnswer(Object, frozen=True, kw_only=True):
    spec: AnswerSpec = AnswerSpec()
    status: AnswerStatus = AnswerStatus()

    @property
    def says_yes(self) -> bool:
        return self.spec.answer == "Approve"

    @property
    def is_open(self) -> bool:
        """Whether something is to become of it."""
        return not self.status.state and self.metadata.deletion_timestamp is None

    def belongs_to(self, job: Metadata) -> bool:
        """Whether it goes when its RoverJob does."""
        return any(each.uid == job.uid for each in self.metadata.owner_references)


PLAN_ANSWER = Kind(f"apis/{GROUP}/{VERSION}", ANSWERS, PlanAnswer)


def answer_of(job: str, plan: int, answer: Literal["Approve", "Reject"], by: str, reason: str = "") -> Json:
    """Return an answer as `kubectl create` takes it; the API server gives it a name."""
    spec: Json = {"job": job, "plan": plan, "answer": answer, "by": by}
    about = {"generateName": f"{job}-{plan}-"}
    said = {"reason": reason} if reason else {}
    return {"apiVersion": API_VERSION, "kind": ANSWER_KIND, "metadata": about, "spec": {**spec, **said}}


def how_to_answer(namespace: str, job: str, plan: int) -> str:
    """Return the command by which a person with nothing but kubectl lets a plan pass."""
    spec = f"{{job: '{job}', plan: {plan}, answer: Approve, by: '{WHOAMI}'}}"
    about = f"{{namespace: '{namespace}', generateName: {job}-{plan}-}}"
    body = f"{{apiVersion: {API_VERSION}, kind: {ANSWER_KIND}, metadata: {about}, spec: {spec}}}"
    return f'kubectl create -f - <<< "{body}"'


# -- the definition --------------------------------------------------------------------------------------------------------


def answer_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition of PlanAnswer, as an API server takes it."""
    names = {"kind": ANSWER_KIND, "listKind": f"{ANSWER_KIND}List", "plural": ANSWERS}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{ANSWERS}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "singular": ANSWER_KIND.lower(), "categories": ["rover"]},
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    root: Schema = {
        "type": "object",
        "description": "A person's answer to a plan of a RoverJob that waits for one. It is never changed.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _status(),
        },
    }
    columns = {
        "Job": ("string", ".spec.job"),
        "Plan": ("integer", ".spec.plan"),
        "Answer": ("string", ".spec.answer"),
        "By": ("string", ".spec.by"),
        "State": ("string", ".status.state"),
        "Reason": ("string", ".status.reason"),
        "Age": ("date", ".metadata.creationTimestamp"),
    }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} for name, (kind, path) in columns.items()
        ],
        "schema": {"openAPIV3Schema": root},
    }


def _spec() -> Schema:
    plan = {"type": "integer", "format": "int64", "minimum": 1}
    by = "the user's name as the API server has it (`kubectl auth whoami`): no other one is taken"
    return {
        "type": "object",
        "required": ["job", "plan", "answer", "by"],
        "properties": {
            "job": {**_text(52), "description": "a RoverJob of this namespace"},
            "plan": {**plan, "description": "the number of the plan that waits: status.plan of the RoverJob"},
            "answer": {"type": "string", "enum": ["Approve", "Reject"]},
            "by": {**_text(MOST_USER), "minLength": 1, "description": by},
            "reason": {**_text(MOST_TEXT), "description": "why: it stands in the job's history"},
        },
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "an answer is never changed: create another one"}
        ],
    }


def _status() -> Schema:
    fact = {"type": "integer", "format": "int64", "minimum": 0}
    return {
        "type": "object",
        "description": "what became of it; the operator alone writes it, once",
        "properties": {
            "state": {"type": "string", "enum": ["Given", "Refused"]},
            "reason": _text(253),
            "message": _text(MOST_TEXT),
            "fact": {**fact, "description": "where the answer stands among the facts of the stack"},
            "time": {"type": "string", "format": "date-time"},
        },
    }


def _text(most: int) -> Schema:
    return {"type": "string", "maxLength": most}
