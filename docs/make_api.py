"""Write docs/api.md from the docstrings of what a training program calls; `--check` says whether it is up to date.

python docs/make_api.py [--check]
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

import rover_bus.client as rover
from rover_bus.client import scoring
from rover_bus.client.data import Bag, Columns
from rover_bus.client.job import Job
from rover_bus.events import errors
from rover_bus.ps import store

DOCS = Path(__file__).parent
OWN = DOCS.parent / "examples" / "own"

GRADIENTS = """\
A gradient is that of the **sum** of the losses of a batch's samples, not of their mean: rates then fit any batch
size. It has the shape of what `pull` returned; rows that occur more than once in a batch are summed before the
optimizer sees them (`g`)."""

FIRST_VALUES = """\
A row's first value is a pure function of (the job's seed, the table's name, the id): every server, every restart and
the exported model agree. A pull of an unknown id returns it and allocates nothing."""

ERRORS = """\
Every error is a `RoverError` with a `code` and the exit code of [the command line](cli.md#exit-codes). An exception
that leaves the `with` block is reported and charged to the batch in hand; a temporary one, `JobOver` and Ctrl-C are
not."""

SECTIONS: list[tuple[str, str, list[Any]]] = [
    ("Joining a job", "", [rover.join, Job, rover.NoJobFile, rover.JobOver]),
    (
        "Data",
        "",
        [
            rover.open_log,
            rover.ClickLog,
            rover.PartitionLog,
            rover.Schema,
            rover.Source,
            rover.Stream,
        ],
    ),
    ("A batch", "", [rover.Batch, Columns, Bag]),
    (
        "Parameters",
        "",
        [store.Parameters, rover.BatchKey, store.Pulled],
    ),
    ("Tables", "", [rover.Dense, rover.Hashed, rover.Growing]),
    (
        "Optimizers",
        GRADIENTS,
        [rover.Sgd, rover.Adagrad, rover.RowAdagrad, rover.Adam, rover.Add],
    ),
    (
        "First values",
        FIRST_VALUES,
        [rover.Zeros, rover.Constant, rover.Uniform, rover.Normal],
    ),
    ("An exported model", "See also [the model file](model-file.md).", [scoring.load, scoring.Model]),
    (
        "Errors",
        ERRORS,
        [
            errors.RoverError,
            errors.InputError,
            errors.Refused,
            errors.AccessDenied,
            errors.BrokerUnreachable,
            errors.NotEnoughMemory,
            store.ServersUnreachable,
            store.GenerationChanged,
        ],
    ),
]


def page() -> str:
    """Return the whole page."""
    head = (DOCS / "api_head.md").read_text()
    head = head.replace("{{train.py}}", (OWN / "train.py").read_text().strip())
    head = head.replace("{{job.toml}}", (OWN / "job.toml").read_text().strip())
    parts = [head.rstrip()]
    for title, text, things in SECTIONS:
        parts.append(f"## {title}")
        parts += [text] if text else []
        parts += [describe(thing) for thing in things]
    return "\n\n".join(parts) + "\n"


def describe(thing: Any) -> str:
    """Return a thing's heading, signature and docstring, and those of its public methods."""
    name = thing.__name__
    lines = [f"### `{name}{_signature(thing)}`", inspect.getdoc(thing) or ""]
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        lines += [_member(key, value) for key, value in vars(thing).items() if _is_shown(key, value)]
    return "\n\n".join(line for line in lines if line)


def _is_shown(key: str, value: object) -> bool:
    callable_ = inspect.isfunction(value) or isinstance(value, property | cached_property | classmethod)
    return not key.startswith("_") and callable_ and bool(_doc(value))


def _doc(value: object) -> str:
    return inspect.getdoc(value) or ""


def _member(key: str, value: Any) -> str:
    function = value.__func__ if isinstance(value, classmethod) else value
    signature = "" if isinstance(value, property | cached_property) else _signature(function)
    return f"- `{key}{signature}`: " + _doc(value).replace("\n", "\n  ")


def _signature(thing: Any) -> str:
    made_by_calls = inspect.isclass(thing) and thing in (Job, scoring.Model, store.Pulled)
    if made_by_calls or (
        inspect.isclass(thing) and (issubclass(thing, Exception) or getattr(thing, "_is_protocol", False))
    ):
        return ""
    if inspect.isclass(thing) and issubclass(thing, msgspec.Struct):
        fields = msgspec.structs.fields(thing)
        return "(" + ", ".join(_field(field) for field in fields) + ")"
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = text.replace("(self, ", "(").replace("(self)", "()").replace("(cls, ", "(").split(" -> ")[0]
    return re.sub(r": '([^']*)'", r": \1", text)


def _field(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"{field.name}={field.default!r}"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"{field.name}={field.default_factory()!r}"
    return str(field.name)


def main() -> int:
    """Write the page, or compare it."""
    path, text = DOCS / "api.md", page()
    if "--check" not in sys.argv:
        path.write_text(text)
        return 0
    if path.exists() and path.read_text() == text:
        return 0
    print("docs/api.md differs from the docstrings: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
