"""One plausible value of any event type, always the same: the examples in schemas/ and the corpus of a release.

Fed by the types themselves, so that a new event needs no example by hand. A list of a union holds one of each member: the
example of a log batch has every kind of record.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

BY_NAME: dict[str, Any] = {
    "job": "movielens",
    "name": "movielens",
    "uid": "3f9c1ab27d40e586",
    "host": "host-1",
    "hosts": ["host-1", "host-2"],
    "masters": ["host-1", "host-2"],
    "holder": "master-0.1",
    "cause": "ROVER_FACTS:17",
    "by": "ada",
    "program": ["python", "train.py"],
    "command": ["python", "train.py"],
    "addresses": ["tcp:127.0.0.1:41007"],
    "train": "/data/clicks_train.csv",
    "evaluate": "/data/clicks_eval.csv",
    "file": "/data/clicks_train.csv",
    "skipped_file": "/data/clicks_train.csv",
    "path": "part-0.1",
    "pid": 4711,
    "cores": 2.0,
    "memory_bytes": 2 << 30,
    "records": 80000,
    "batch_size": 128,
    "epochs": 3,
    "reason": "out_of_memory",
    "time_ms": 1_790_000_000_000,
    "position": (12, 4),
    "brain_position": (7, 0),
}


def sample(cls: type[msgspec.Struct]) -> msgspec.Struct:
    """Return a value of an event type."""
    value = _of(_type_of(cls), "")
    assert isinstance(value, cls)
    return value


@cache
def _type_of(cls: type[msgspec.Struct]) -> inspect.Type:
    """Return what a type consists of: a history that is fed mutated facts asks for a sample of each, thousands of times."""
    return inspect.type_info(cls)


def _of(kind: inspect.Type, name: str) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _of(inner, name)
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: _field(field) for field in fields})
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.UnionType(types=types):
            return _of(next(each for each in types if not isinstance(each, inspect.NoneType)), name)
        case inspect.ListType(item_type=item):
            return _list(item, name)
        case inspect.VarTupleType(item_type=item):
            return tuple(_list(item, name))
        case inspect.TupleType(item_types=items):
            return tuple(_of(item, name) for item in items)
        case inspect.DictType(key_type=key, value_type=value):
            return {_of(key, "key"): _of(value, name)}
        case _:
            pass  # the others do not matter here
    return _scalar(kind, name)


def _field(field: inspect.Field) -> Any:
    """Return the example of a field: by its name where the type takes it, else by its type."""
    if field.name in BY_NAME:
        try:
            return msgspec.convert(BY_NAME[field.name], _annotation(field.type))
        except (msgspec.ValidationError, NotImplementedError):
            pass
    return _of(field.type, field.name)


def _annotation(kind: inspect.Type) -> Any:
    """Return a type to check a value of BY_NAME against; unknown shapes are refused."""
    match kind:
        case inspect.Metadata(type=inner):
            return _annotation(inner)
        case inspect.IntType():
            return int
        case inspect.FloatType():
            return float
        case inspect.StrType():
            return str
        case inspect.ListType(item_type=inspect.StrType()):
            return list[str]
        case inspect.TupleType(item_types=(inspect.IntType(), inspect.IntType())):
            return tuple[int, int]
        case inspect.UnionType(types=types):
            return _annotation(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case _:
            pass  # the others do not matter here
    raise NotImplementedError


def _list(item: inspect.Type, name: str) -> list[Any]:
    if isinstance(item, inspect.UnionType) and all(
        isinstance(each, inspect.StructType) for each in item.types
    ):
        return [_of(each, name) for each in item.types]
    return [_of(item, name)]


def _scalar(kind: inspect.Type, name: str) -> Any:
    match kind:
        case inspect.BoolType():
            return True
        case inspect.IntType(ge=low):
            return max(low or 0, 1)
        case inspect.FloatType(ge=low, le=high):
            return float(min(max(0.5, low or 0.0), high if high is not None else 0.5))
        case inspect.StrType():
            return name
        case inspect.BytesType():
            return b"\x00\x01"
        case inspect.RawType():
            return msgspec.Raw(b"\x80")
        case inspect.AnyType():
            return 0.785
        case inspect.NoneType():
            return None
        case _:
            pass  # the others do not matter here
    raise NotImplementedError(f"no example for {kind!r}")
