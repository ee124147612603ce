"""The template of a role's pods: the operator's own, and over it what the object of the job says. Pure.

Used by pods.py for members and by trials.py for what is tried before them. A template is checked before its job is handed in, and
again whenever a pod is made of it: an object may be edited while its job runs, and pods made from then on follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rover_bus.events.errors import InputError
from rover_bus.events.identity import Role
from rover_bus.kube.kinds import Json
from rover_bus.kube.object import ROLES, STORAGE_MOUNT
from rover_bus.kube.roverjobs import RoverJob

MAIN = "main"  # the container that is the member
STORAGE = "rover-checkpoints"  # the volume of a claim
NAMES: Mapping[Role, str] = {"master": "master", "worker": "worker", "ps": "server"}  # of roles, in an object
WITH_STORAGE: frozenset[Role] = frozenset({"ps"})  # what reads checkpoints back


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Container(_Named, frozen=True, rename="camel"):
    env: list[Json] = []
    env_from: list[Json] = []
    volume_mounts: list[Json] = []


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container] = []
    init_containers: list[_Named] = []
    volumes: list[_Named] = []
    tolerations: list[Json] = []


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Template(msgspec.Struct, frozen=True):
    """As much of a pod template as is put together here; the API server checks the rest."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


def checked(template: Any, where: str) -> Json:
    """Return a template without nulls, which mean nothing. Raises InputError for what no pod can be put together from."""
    made: Json = _without_nulls(template)
    try:
        msgspec.convert(made, _Template)
    except msgspec.ValidationError as error:
        raise InputError(f"{where} is no pod template: {error}") from error
    return made


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def check_templates(spec: Mapping[str, Any]) -> None:
    """Check the templates of an object's spec. Raises InputError."""
    for role in ROLES:
        checked((spec.get("templates") or {}).get(role) or {}, f"templates.{role}")


def template_of(base: Json, object_: RoverJob | None, role: Role) -> Json:
    """Return the template of a role: `base`, and over it what the object says. Raises InputError for one that is none."""
    if object_ is None:
        return base
    own = (object_.spec.get("templates") or {}).get(NAMES[role]) or {}
    made = _merged(base, checked(own, f"templates.{NAMES[role]} of {object_.metadata.ref}"))
    spec = made["spec"]
    if name := object_.spec.get("priorityClassName"):
        spec.setdefault("priorityClassName", name)
    if role in WITH_STORAGE:
        _add_storage(spec, (object_.spec.get("checkpoint") or {}).get("storage") or {})
    return made


def _merged(base: Json, own: Json) -> Json:
    """Lists of named things by their names, tolerations one after the other, all else as the object says where it says it."""
    there, here = base.get("spec", {}), own.get("spec", {})
    spec = {**there, **here}
    for key in ("containers", "initContainers", "volumes"):
        if key in spec:
            spec[key] = _by_name(there.get(key, []), here.get(key, []))
    if "tolerations" in spec:
        spec["tolerations"] = [*there.get("tolerations", []), *here.get("tolerations", [])]
    before, after = base.get("metadata", {}), own.get("metadata", {})
    metadata = {key: {**before.get(key, {}), **after.get(key, {})} for key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": spec}


def _by_name(there: list[Json], here: list[Json]) -> list[Json]:
    made = {each["name"]: each for each in there}
    for each in here:
        made[each["name"]] = {**made.get(each["name"], {}), **each}
    return list(made.values())


def _add_storage(spec: Json, storage: Mapping[str, Any]) -> None:
    """The volume of a claim, or the environment that an object store wants, for the container of the member."""
    main: Json = next((each for each in spec.get("containers", []) if each["name"] == MAIN), {"name": MAIN})
    others = [each for each in spec.get("containers", []) if each["name"] != MAIN]
    if claim := storage.get("claim"):
        volume = {"name": STORAGE, "persistentVolumeClaim": {"claimName": claim}}
        spec["volumes"] = _by_name(spec.get("volumes", []), [volume])
        mount = {"name": STORAGE, "mountPath": STORAGE_MOUNT}
        main = {**main, "volumeMounts": [*main.get("volumeMounts", []), mount]}
    if secret := storage.get("secret"):
        main = {**main, "envFrom": [*main.get("envFrom", []), {"secretRef": {"name": secret}}]}
    spec["containers"] = [main, *others]
