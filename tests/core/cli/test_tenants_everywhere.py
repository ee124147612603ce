"""The whole command line, walked: each command that takes a job takes `TENANT/JOB` and `--tenant`, and no other has the option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rover_bus.cli.connection import split_name
from rover_bus.cli.group import COMMANDS, rover
from rover_bus.events.errors import InputError

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
JOB_NAMES = {"job", "event", "words", "name"}  # parameters by which a command is told a job
# Of a job; of all jobs of a tenant, or of all tenants.
OF_A_JOB = {
    *("cancel", "events", "explain", "export", "forget", "logs", "members", "move", "pause", "resume", "run"),
    *("replay", "scale", "stop", "story", "submit", "what-if", "witness", "doctor", "disk"),
    *(f"plan {each}" for each in ("list", "approve", "reject", "mode", "try")),
    *(f"checkpoint {each}" for each in ("list", "verify", "restore", "prune")),
}
OF_ALL_JOBS = {"jobs", "top", "history"}
# Of the whole stack, of one machine, of files: a job of a tenant means nothing to them.
OF_NO_TENANT = {
    *(
        "demo",
        "up",
        "down",
        "backup",
        "broker",
        "web",
        "auth page-token",
        "brain",
        "node-agent",
        "join",
        "restore",
        "decode",
        "predict",
        "simulate",
        "fit",
        "nats",
        *(f"kube {each}" for each in ("render", "clean", "memory", "revoke")),
        *(f"kube {each}" for each in ("approve", "reject")),
        "upgrade",
    ),
    *(
        f"auth {each}"
        for each in ("add", "list", "credentials", "remove", "token", "users", "revoke", "rotate")
    ),
    *(f"quota {each}" for each in ("list", "set", "remove")),
    *(f"freeze {each}" for each in ("list", "set", "lift")),
}

# What makes tenants, waits for them, or makes credentials of one: it takes no job.
OF_TENANTS = {"operator", "kube prepare", "kube credentials"}


def walk() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(rover)
    for name in COMMANDS:
        command = rover.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", command.commands[each]) for each in command.commands)
        else:
            yield name, command


FOUND = dict(walk())


def test_every_command_says_whether_tenants_mean_something_to_it() -> None:
    assert set(FOUND) == OF_A_JOB | OF_ALL_JOBS | OF_TENANTS | OF_NO_TENANT


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_command_offers_the_tenant_where_it_is_of_jobs_and_nowhere_else(name: str) -> None:
    options = {each for one in FOUND[name].params for each in (*one.opts, *one.secondary_opts)}
    assert ("--tenant" in options) == (name in OF_A_JOB | OF_ALL_JOBS | OF_TENANTS)
    if name in OF_A_JOB:
        assert {each.name for each in FOUND[name].params} & JOB_NAMES


def test_a_job_of_another_tenant_than_the_one_that_is_meant_is_refused() -> None:
    named = {"job": "ads/demo"}
    assert (split_name(named, ""), named["job"]) == ("ads", "demo")
    assert split_name({"job": "ads/demo"}, "ads") == "ads"
    assert split_name({"job": "demo"}, "ads") == "ads"
    with pytest.raises(InputError, match="ads/demo is of the tenant ads, not of maps"):
        split_name({"job": "ads/demo"}, "maps")
    with pytest.raises(InputError, match="tenant 'a b' cannot be used"):
        split_name({"job": "a b/demo"}, "")
