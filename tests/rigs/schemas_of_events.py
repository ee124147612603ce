"""Judge message bodies by the files in schemas/, as a program in another language would."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from rover_bus.cli.decode import describe

SCHEMAS = Path(__file__).parents[2] / "schemas"
A_KIND = 1000


def _any_of(validator: Any, alternatives: list[Any], instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The alternative that the discriminator names, where there is one: trying all 70 for each record of a log takes a minute."""
    tag = schema.get("discriminator")
    if tag is None or not isinstance(instance, dict):
        yield from Draft202012Validator.VALIDATORS["anyOf"](validator, alternatives, instance, schema)
        return
    named = {"$ref": tag["mapping"].get(instance.get(tag["propertyName"]))}
    if named in alternatives:
        yield from validator.descend(instance, named)
    else:
        yield ValidationError(f"{instance.get(tag['propertyName'])!r} is none of the alternatives")


_Validator = extend(Draft202012Validator, {"anyOf": _any_of})


@cache
def _validator(kind: str) -> Any:
    path = SCHEMAS / f"{kind}.json"
    return _Validator(json.loads(path.read_text())) if path.exists() else None


class Judge:
    """Validates up to A_KIND bodies of each kind. `seen` counts them; `complaints` has a line for each that does not fit."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.complaints: list[str] = []

    def take(self, body: bytes) -> None:
        value = describe(body)
        kind = str(value.get("type", value.get("foreign")))
        if self.seen[kind] >= A_KIND:
            return
        self.seen[kind] += 1
        validator = _validator(kind)
        error = "no schema" if validator is None else next(validator.iter_errors(value), None)
        if error is not None:
            place = ".".join(map(str, getattr(error, "absolute_path", ())))
            self.complaints.append(f"{kind} at {place}: {getattr(error, 'message', error)[:200]}")

    def take_all(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self.take(body)
