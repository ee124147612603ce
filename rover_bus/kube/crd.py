"""The resource definition of RoverJob: the job file's keys, what only Kubernetes has, its rules, columns and status.

Fed by structural.py; written to deploy/crd/roverjobs.yaml by `make schemas` and compared by `make lint`, so that a new key of the
job file is a new field of the object. Why it looks like this: docs/design/0055.
"""

from __future__ import annotations

from typing import Any

from rover_bus.client.job_file import TABLES
from rover_bus.events.job import JobSpec
from rover_bus.kube.object import CONDITIONS, GROUP, KIND, NOT_KEYS, PLURAL, ROLES, SHORT, VERSION
from rover_bus.kube.plan_answers import answer_definition
from rover_bus.kube.structural import ANYTHING, MOST_TEXT, Schema, of_struct

_NAME: Schema = {"type": "string", "maxLength": 253}
_COUNT: Schema = {"type": "integer", "format": "int64", "minimum": 0}
_TEXT: Schema = {"type": "string", "maxLength": MOST_TEXT}
_TIME: Schema = {"type": "string", "format": "date-time"}


def resource_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition, as an API server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT],
                "categories": ["rover"],
            },
            "versions": [_version()],
        },
    }


def definitions() -> tuple[dict[str, Any], ...]:
    """Return the definitions of all kinds that are ours, in the order in which they are installed."""
    return resource_definition(), answer_definition()


def _version() -> dict[str, Any]:
    root: Schema = {
        "type": "object",
        "description": "A training job: its data, its program, and what the Brain may choose.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": status_schema(),
        },
        "x-kubernetes-validations": [
            _rule(
                "self.metadata.name.size() <= 52",
                "a job's name has at most 52 characters: pods add role and number",
            ),
            _rule(
                "!self.metadata.name.contains('.')", "a job's name holds no dot: it is a token of a subject"
            ),
        ],
    }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": root},
    }


def _columns() -> list[dict[str, Any]]:
    shown = {
        "Workers": ("integer", ".status.workers"),
        "Servers": ("integer", ".status.servers"),
        "Epoch": ("string", ".status.epoch"),
        "Goodput": ("string", ".status.goodput"),
        "State": ("string", ".status.state"),
        "Age": ("date", ".metadata.creationTimestamp"),
    }
    return [{"name": name, "type": kind, "jsonPath": path} for name, (kind, path) in shown.items()]


# -- what is asked for ---------------------------------------------------------------------------------------------------


def spec_schema() -> Schema:
    """Return the schema of `spec`: the job file, then what only Kubernetes has."""
    made = of_struct(JobSpec, left_out=NOT_KEYS[""])
    keys = made["properties"]
    for table in TABLES:
        keys[table] = of_struct(TABLES[table], left_out=NOT_KEYS.get(table, frozenset()))
    keys["program"]["minItems"] = 1
    keys["data"]["x-kubernetes-validations"] = [
        _fixed(each, f"data.{each}", "batches are what is leased and committed")
        for each in ("train", "batch_size", "epochs", "seed")
    ]
    for role in ("workers", "servers"):
        keys[role]["x-kubernetes-validations"] = _role_rules()
    keys["workers"]["x-kubernetes-validations"].append(
        _fixed("training", "workers.training", "the ledger follows it")
    )
    keys["checkpoint"]["properties"]["storage"] = _storage()
    keys["checkpoint"]["x-kubernetes-validations"] = [
        _rule(
            "!(has(self.parity) && self.parity > 0 && has(self.copies) && self.copies > 0)",
            "parity and copies say the same: choose one of them",
        ),
        _fixed("storage", "checkpoint.storage", "what is stored there is what the job goes back to"),
    ]
    keys |= {
        "suspend": {
            "type": "boolean",
            "description": "true: its workers leave, and its servers once a checkpoint is stored; false: it goes on where it was",
        },
        "activeDeadlineSeconds": {
            **_COUNT,
            "minimum": 1,
            "description": "the job fails that has not ended so long after its first pod",
        },
        "ttlSecondsAfterFinished": {
            **_COUNT,
            "description": "the object of an ended job, its pods and logs are deleted after it; default: never",
        },
        "priorityClassName": {**_NAME, "description": "of the job's pods, where their template names none"},
        "templates": _templates(),
    }
    made["required"] = ["data"]
    made["x-kubernetes-validations"] = [
        _fixed("program", "program", "what checkpoints were trained by goes on with them"),
    ]
    return made


def _role_rules() -> list[Schema]:
    return [
        _rule(
            f"!has(self.{each}) || !has(self.max_count) || self.{each} <= self.max_count",
            f"{each} is larger than max_count",
        )
        for each in ("count", "start", "min_count")
    ] + [
        _rule(
            "!has(self.count) || !has(self.min_count) || self.count == 0 || self.min_count == 0",
            "count is the least already: leave min_count out, or count",
        )
    ]


def _storage() -> Schema:
    """Where checkpoints outlive nodes."""
    return {
        "type": "object",
        "description": "where checkpoints are stored; without it a lost node loses those that it holds",
        "properties": {
            "claim": {**_NAME, "description": "a PersistentVolumeClaim of the namespace"},
            "url": {**_TEXT, "description": "an object store: s3://, gs://, az://"},
            "secret": {
                **_NAME,
                "description": "a Secret whose entries are the environment that the object store wants",
            },
        },
        "x-kubernetes-validations": [
            _rule("has(self.claim) != has(self.url)", "name either a claim or a url"),
            _rule("!has(self.secret) || has(self.url)", "a secret belongs to a url"),
        ],
    }


def _templates() -> Schema:
    one: Schema = {
        "type": "object",
        "properties": {"metadata": dict(ANYTHING), "spec": dict(ANYTHING)},
        "description": "a pod template; its container `main` is the member's",
    }
    return {
        "type": "object",
        "properties": dict.fromkeys(ROLES, one),
        "description": "image, code and volumes of each role's pods",
    }


# -- what is seen ---------------------------------------------------------------------------------------------------------


def status_schema() -> Schema:
    """Return the schema of `status`, which the operator alone writes."""
    member = {"name": _NAME, "incarnation": _COUNT, "pod": _NAME, "node": _NAME, "state": _NAME}
    plan = {
        "number": _COUNT,
        "workers": _COUNT,
        "servers": _COUNT,
        "reason": _NAME,
        "message": _TEXT,
        "state": _NAME,
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": _COUNT,
            "observedFact": {**_COUNT, "description": "the newest fact of the job that this shows"},
            "startTime": {**_TIME, "description": "its first member took part, since it was last suspended"},
            "completionTime": _TIME,
            "uid": {**_NAME, "description": "of this run: `rover` and checkpoints know it by this"},
            "conditions": {
                "type": "array",
                "maxItems": len(CONDITIONS),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": _condition(),
            },
            "state": {**_NAME, "description": "the conditions in one word, for people"},
            "workers": _COUNT,
            "servers": _COUNT,
            "epoch": _NAME,
            "goodput": {**_NAME, "description": "samples a second that were committed"},
            "committed": _COUNT,
            "deadLettered": _COUNT,
            "total": _COUNT,
            "result": {
                **ANYTHING,
                "description": "figures of the ended job, as `rover submit --json` has them",
            },
            "plan": {"type": "object", "properties": plan},
            "checkpoint": {
                "type": "object",
                "properties": {"number": _COUNT, "time": _TIME, "location": _TEXT},
            },
            "members": {
                "type": "array",
                "maxItems": 10_000,
                "items": {"type": "object", "properties": member},
            },
        },
    }


def _condition() -> Schema:
    return {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "enum": list(CONDITIONS)},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "maxLength": 1024, "minLength": 1},
            "message": {"type": "string", "maxLength": 32_768},
            "lastTransitionTime": _TIME,
            "observedGeneration": _COUNT,
        },
    }


def _rule(rule: str, message: str) -> Schema:
    return {"rule": rule, "message": message}


def _fixed(key: str, place: str, why: str) -> Schema:
    """Return the rule that a key stays as it was."""
    kept = f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || self.{key} == oldSelf.{key})"
    return _rule(kept, f"{place} cannot be changed ({why}): submit another job")
