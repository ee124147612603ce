"""Settings as people write them: names, units, where they come from, and what is wrong with them.

`leases.heartbeat=2s` on a command line, `ROVER_SET_LEASES_HEARTBEAT=2s` in the environment. The fields and their annotations are
the truth: those of events/settings.py for processes, those of events/job.py for jobs (there the job file says it too, and wins).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, cast

import msgspec

from rover_bus.events.errors import InputError
from rover_bus.events.job import CheckpointSpec, JobSpec, LeaseSpec, MoveSpec, PlanSpec, RoleSpec, WorkersSpec
from rover_bus.events.settings import DEFAULTS, Settings, key_of
from rover_bus.events.units import parse_bytes, parse_seconds

PREFIX = "ROVER_SET_"
Value = float | str  # of a choice: its word
Source = Literal["default", "rover up", "environment", "job file"]
OF_A_JOB: dict[str, type[msgspec.Struct]] = {
    "workers": WorkersSpec,
    "servers": RoleSpec,
    "leases": LeaseSpec,
    "plan": PlanSpec,
    "moves": MoveSpec,
    "checkpoint": CheckpointSpec,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that may be set. `low`, `high`: the range; `whole`: it counts something; `choices`: it is one of these words."""

    table: str
    field: str
    of_job: bool
    default: Value
    reason: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.table}.{key_of(self.field)}"

    @property
    def unit(self) -> str:
        return self.field.removeprefix(key_of(self.field)).removeprefix("_")

    @property
    def variable(self) -> str:
        """What it is called in the environment."""
        return PREFIX + self.name.upper().replace(".", "_")

    @property
    def range(self) -> str:
        """What it may be, for people."""
        return ", ".join(self.choices) or f"{self.spell(self.low)} to {self.spell(self.high)}"

    def read(self, value: object, what: str) -> Value:
        """Return a value as it was written: a word, seconds, bytes or a number. Raises InputError: `what` names it there."""
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise InputError(f"{what}: {value!r} is none of {self.range} ({self.reason})")
            return value
        number = self._number(value, what)
        if not self.low <= number <= self.high:
            raise InputError(f"{what}: {self.spell(number)} is outside {self.range} ({self.reason})")
        return number

    def _number(self, value: object, what: str) -> float:
        if isinstance(value, str):
            with suppress(ValueError):  # with a unit, or wrong
                value = int(value) if self.whole else float(value)
        if self.field.endswith("_bytes"):
            return parse_bytes(value, what)
        if self.field.endswith("_s"):
            return parse_seconds(value, what)
        if (
            isinstance(value, bool)
            or not isinstance(value, int if self.whole else (int, float))
            or value != value
        ):
            raise InputError(f"{what} must be a {'whole ' if self.whole else ''}number, not {value!r}")
        return value

    def spell(self, value: Value) -> str:
        """Return a value as `read` reads it and people do."""
        if isinstance(value, str):
            return value
        if self.field.endswith("_bytes"):
            return _scaled(
                value, (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)), "B"
            )
        if self.field.endswith("_s"):
            return _scaled(value, (("d", 86_400), ("h", 3600), ("m", 60)), "s")
        return f"{value:.10g}"


def _scaled(value: float, units: Sequence[tuple[str, int]], least: str) -> str:
    for unit, size in units:
        if value >= size and value % size == 0:
            return f"{value / size:.10g}{unit}"
    return f"{value:.10g}{least}"


class SetValue(NamedTuple):
    """What was set, and where."""

    value: Value
    source: Source


Chosen = Mapping[str, SetValue]
NOTHING_CHOSEN: Chosen = {}


@cache
def every_setting() -> Mapping[str, Setting]:
    """Return all settings by name, those of processes first."""
    found: dict[str, Setting] = {}
    for table in Settings.__struct_fields__:
        _collect(found, table, type(getattr(DEFAULTS, table)), of_job=False)
    for table, cls in OF_A_JOB.items():
        _collect(found, table, cls, of_job=True)
    return found


def _collect(found: dict[str, Setting], table: str, cls: type[msgspec.Struct], *, of_job: bool) -> None:
    for field in msgspec.inspect.type_info(cls).fields:  # type: ignore[attr-defined]
        kind = field.type
        if isinstance(kind, msgspec.inspect.Metadata) and (kind.extra or {}).get("setting"):
            setting = Setting(
                table=table,
                field=field.name,
                of_job=of_job,
                default=field.default,
                reason=(kind.extra_json_schema or {})["description"],
                **_bounds_of(kind.type),
            )
            found[setting.name] = setting


def _bounds_of(kind: msgspec.inspect.Type) -> dict[str, Any]:
    if isinstance(kind, msgspec.inspect.LiteralType):
        return {"choices": kind.values}
    number = cast(msgspec.inspect.IntType | msgspec.inspect.FloatType, kind)
    return {"low": number.ge, "high": number.le, "whole": isinstance(number, msgspec.inspect.IntType)}


def choose(words: Iterable[str], environment: Mapping[str, str]) -> Chosen:
    """Return what `--set NAME=VALUE` and the environment say: the environment wins.

    Raises InputError for what is wrong with either.
    """
    chosen: dict[str, SetValue] = {}
    for word in words:
        name, equals, value = word.partition("=")
        setting = every_setting().get(name.strip())
        if not equals:
            raise InputError(f"--set {word}: write NAME=VALUE, for example leases.heartbeat=2s")
        if setting is None:
            raise InputError(f"--set {word}: no setting {name.strip()!r}{_nearest(name, every_setting())}")
        chosen[setting.name] = SetValue(setting.read(value, f"--set {setting.name}"), "rover up")
    variables = {setting.variable: setting for setting in every_setting().values()}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        if variable not in variables:
            raise InputError(f"{variable} in the environment sets nothing{_nearest(variable, variables)}")
        setting = variables[variable]
        chosen[setting.name] = SetValue(setting.read(environment[variable], variable), "environment")
    return chosen


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else "; `rover doctor --settings` lists them all"


def of_processes(chosen: Chosen) -> Settings:
    """Return the settings that a service runs with."""
    tables: dict[str, dict[str, Value]] = {}
    for name, choice in chosen.items():
        setting = every_setting()[name]
        if not setting.of_job:
            tables.setdefault(setting.table, {})[setting.field] = choice.value
    return msgspec.convert(tables, Settings)


def complete(fields: dict[str, Any], chosen: Chosen) -> None:
    """Add to a job file's tables, units read, what they leave out and was set. A job without [checkpoint] gets none."""
    for name, choice in chosen.items():
        setting = every_setting()[name]
        if setting.of_job and (setting.table != "checkpoint" or "checkpoint" in fields):
            fields.setdefault(setting.table, {}).setdefault(setting.field, choice.value)


def value_in(spec: JobSpec, setting: Setting) -> Value:
    """Return what a job has of a setting; its default where the job has no such table."""
    table = getattr(spec, setting.table)
    return setting.default if table is None else getattr(table, setting.field)


def dump(chosen: Chosen) -> bytes:
    """Return what was set as the bucket ROVER_SETTINGS holds it: JSON, for people too."""
    return msgspec.json.encode({name: [choice.value, choice.source] for name, choice in chosen.items()})


def load(stored: bytes) -> Chosen:
    """Read it back. Raises InputError for what no service wrote: nothing is believed unread."""
    try:
        found = msgspec.json.decode(stored, type=dict[str, tuple[Value, Source]])
    except msgspec.DecodeError as error:
        raise InputError(f"the bucket ROVER_SETTINGS holds no settings ({error})") from None
    chosen: dict[str, SetValue] = {}
    for name, (value, source) in found.items():
        setting = every_setting().get(name)
        if setting is None:
            raise InputError(f"the bucket ROVER_SETTINGS names {name!r}, which is no setting of this release")
        whole = int(value) if setting.whole and not isinstance(value, str) else value
        chosen[name] = SetValue(setting.read(whole, f"{name} in ROVER_SETTINGS"), source)
    return chosen
