"""Our Structs as structural schemas: what an API server checks of an object before anything of ours reads it.

Fed by the types of events/job.py, whose keys are those of the job file; feeds crd.py. It is apart because it knows Kubernetes'
dialect (no references, no unions but one) and nothing of jobs. What the dialect cannot say stands in `description`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect

from rover_bus.client.job_file import keys_of

Schema = dict[str, Any]

# Strings and lists need a bound: without one the API server takes a rule that compares them for too expensive.
MOST_TEXT, MOST_ITEMS = 4096, 256
_NUMBER = r"[0-9]+(\.[0-9]+)?"
SIZE = re.compile(rf"^{_NUMBER}([KMGT]i?)?B$|^{_NUMBER}[KMGT]i$")
_DURATION = rf"^{_NUMBER}(us|ms|s|m|h)$"  # what the rules' own `duration` reads
_MOST_DIGITS = 32
_UNITS = {
    "_bytes": (SIZE.pattern, "a size like 2GiB, or a whole number of bytes"),
    "_s": (_DURATION, "a duration like 30ms or 10s, or a whole number of seconds"),
}
ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def of_struct(cls: type[msgspec.Struct], left_out: frozenset[str] = frozenset()) -> Schema:
    """Return the schema of a table of the job file: an object whose keys are those of the file. `left_out`: keys."""
    fields = {field.name: field for field in inspect.type_info(cls).fields}  # type: ignore[attr-defined]
    keys = {key: fields[name] for key, name in keys_of(cls).items() if key not in left_out}
    made: Schema = {"type": "object", "properties": {key: of_field(field) for key, field in keys.items()}}
    required = [key for key, field in keys.items() if field.required]
    return {**made, "required": required} if required else made


def of_field(field: inspect.Field) -> Schema:
    """Return the schema of one field: a number with a unit in its name may be written with that unit."""
    kind, said = _unwrapped(field.type)
    for suffix, (pattern, words) in _UNITS.items():
        if field.name.endswith(suffix):
            made: Schema = {"x-kubernetes-int-or-string": True, "pattern": pattern, "maxLength": _MOST_DIGITS}
            if suffix == "_s":
                made["x-kubernetes-validations"] = _duration_rules(kind)
            return {**made, "description": _sentence(said, words, _default(field))}
    made = _of_type(kind)
    described = _sentence(said, _default(field))
    return {**made, "description": described} if described else made


def _of_type(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int64", **_bounds(kind)}
        case inspect.FloatType():
            return {"type": "number", **_bounds(kind)}
        case inspect.StrType():
            return {"type": "string", "maxLength": MOST_TEXT}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case inspect.ListType():
            return {"type": "array", "maxItems": MOST_ITEMS, "items": _of_type(kind.item_type)}
        case inspect.DictType(value_type=inspect.AnyType()):
            return dict(ANYTHING)
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _of_type(kind.value_type)}
        case inspect.StructType():
            return of_struct(kind.cls)
        case inspect.UnionType(types=(kept, inspect.NoneType()) | (inspect.NoneType(), kept)):
            return _of_type(kept)
        case _:
            raise TypeError(f"{kind} has no form in a structural schema: give it one in {__name__}")


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """Return a type without its annotations, and what they say of it."""
    if isinstance(kind, inspect.Metadata):
        return kind.type, str((kind.extra_json_schema or {}).get("description", ""))
    return kind, ""


def _bounds(kind: inspect.IntType | inspect.FloatType) -> Schema:
    ends = {"minimum": kind.ge, "maximum": kind.le}
    return {name: end for name, end in ends.items() if end is not None}


def _duration_rules(kind: inspect.Type) -> list[Schema]:
    """Return the rule that bounds a duration, written as a number or with a unit."""
    assert isinstance(kind, inspect.FloatType)
    ends = [("<", kind.ge), (">", kind.le)]
    beyond = [
        f"(type(self) == int ? double(self) {sign} {float(end)!r} : duration(self) {sign} duration('{end:.9g}s'))"
        for sign, end in ends
        if end
    ]
    if not beyond:
        return []
    least, most = f"{kind.ge or 0:g}", "" if kind.le is None else f"{kind.le:g}"
    message = f"must be from {least} to {most} seconds" if most else f"must be at least {least} seconds"
    return [{"rule": f"!({' || '.join(beyond)})", "message": message}]


def _default(field: inspect.Field) -> str:
    """Say what holds without the key. Settings of the stack may replace it, so the schema sets nothing itself."""
    value = field.default
    plain = isinstance(value, bool | int | float | str) and value not in ("", None)
    return f"default {value}" if plain else ""


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
