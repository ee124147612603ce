"""What was set for a cluster, its hosts and a job, beside every default: what `rover doctor --settings` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rover_bus.cli.views.hindrances import read_present, read_registered
from rover_bus.events.bus import Bus
from rover_bus.events.errors import InputError
from rover_bus.events.facts import JobSubmitted
from rover_bus.events.job import JobSpec
from rover_bus.events.looks import last_fact
from rover_bus.events.streams import OF_THE_CLUSTER, SETTINGS
from rover_bus.events.subjects import job_fact
from rover_bus.events.written_settings import (
    NOTHING_CHOSEN,
    Chosen,
    Setting,
    SetValue,
    Value,
    every_setting,
    load,
    value_in,
)

COLUMNS = ("name", "value", "from", "default", "range", "reason")
Hosts = Mapping[str, Mapping[str, Value]]


class SettingRow(NamedTuple):
    """One setting as it holds. `hosts`: those whose daemon was given another value."""

    setting: Setting
    choice: SetValue
    hosts: Mapping[str, Value]

    def as_table(self) -> dict[str, Any]:
        """Return it for people."""
        setting = self.setting
        apart = [f"{setting.spell(value)} on {host}" for host, value in sorted(self.hosts.items())]
        return {
            "name": setting.name,
            "value": "; ".join([setting.spell(self.choice.value), *apart]),
            "from": self.choice.source,
            "default": setting.spell(setting.default),
            "range": setting.range,
            "reason": setting.reason,
        }

    def as_json(self) -> dict[str, Any]:
        """Return it for programs: seconds, bytes, plain numbers, or one of `choices`."""
        setting = self.setting
        return {
            "name": setting.name,
            "unit": setting.unit,
            "value": self.choice.value,
            "from": self.choice.source,
            "hosts": dict(self.hosts),
            "default": setting.default,
            "least": setting.low,
            "most": setting.high,
            "choices": list(setting.choices),
            "reason": setting.reason,
            "variable": setting.variable,
            "of": "job" if setting.of_job else "processes",
        }


async def read_chosen(bus: Bus) -> Chosen:
    """Return what `rover up` and its environment set; nothing where no Brain has come up yet. Raises InputError."""
    entry = await bus.get(SETTINGS, OF_THE_CLUSTER)
    return load(entry.value) if entry is not None and entry.value else NOTHING_CHOSEN


async def read_hosts(bus: Bus) -> Hosts:
    """Return what the daemon of each host that is there was given, as it said when it registered."""
    registered = await read_registered(bus, (await read_present(bus)).hosts)
    return {host: fact.settings for host, fact in registered.items()}


async def read_spec(bus: Bus, job: str) -> JobSpec:
    """Return a job as it was submitted last. Raises InputError."""
    fact = await last_fact(bus, job_fact(job, JobSubmitted.kind()), JobSubmitted)
    if fact is None:
        raise InputError(f"no job {job!r}: `rover jobs` lists them")
    return fact.spec


def rows_of(chosen: Chosen, hosts: Hosts, job: JobSpec | None = None) -> list[SettingRow]:
    """Return every setting as it holds; with a job, what its log says of those that are a job's."""
    found: list[SettingRow] = []
    for name, setting in every_setting().items():
        choice = chosen.get(name, SetValue(setting.default, "default"))
        if job is not None and setting.of_job and (value := value_in(job, setting)) != choice.value:
            choice = SetValue(value, "job file")
        apart: dict[str, Value] = {}
        if not setting.of_job:
            mine = {host: given.get(name, setting.default) for host, given in hosts.items()}
            apart = {host: value for host, value in mine.items() if value != choice.value}
        found.append(SettingRow(setting, choice, apart))
    return found
