"""Each part alone new, then alone old, while a job trains and its processes are killed: every sample once, nothing unreadable.
Then all new, and the format raised meanwhile; afterwards the former release is refused.

The operator's mixes are in test_operator_mixes.py, what both share in tests/rigs/mixed_stacks.py.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from mixed_stacks import DISTURBED_S, MixedStack, assert_readable, disturb, job_of, mixes, part_of
from outside import ROVER, rover
from small_job import SmallJob

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.home import Home
from rover_bus.events.codec import type_of
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import job_facts

pytestmark = pytest.mark.chaos
IN_CI = (("master", "new"), ("daemon", "old"))  # and the stack that is raised
RAISED = "members.desired.v2"  # what is written in format 2 alone


@pytest.mark.parametrize("old", mixes(MixedStack.parts, MixedStack.parts, IN_CI))
def test_a_job_trains_through_kills_in_a_mix_of_releases(
    old: frozenset[str], former: Path, tmp_path: Path
) -> None:
    MixedStack(tmp_path, former, frozenset(MixedStack.parts)).makes_a_stack()
    mix = MixedStack(tmp_path, former, old)
    with mix.runs():
        job_of(mix, tmp_path).trains_through_kills()
    mix.assert_ran()


def test_a_stack_is_raised_while_a_job_trains_through_kills_and_nothing_older_starts_in_it(
    former: Path, tmp_path: Path
) -> None:
    old = MixedStack(tmp_path, former, frozenset(MixedStack.parts))
    old.makes_a_stack()
    mix = MixedStack(tmp_path, former, frozenset())
    with mix.runs():
        job = job_of(mix, tmp_path)
        job.begin()
        assert RAISED not in written(job)
        raising = subprocess.Popen(
            [*ROVER, "upgrade", "--dir", str(mix.home)], env=os.environ | mix.variables, cwd=tmp_path
        )
        disturb(mix, job, DISTURBED_S / 2)
        assert raising.wait(120) == 0
        again = job.rover("upgrade")
        assert (again.returncode, "already" in again.stdout) == (0, True), again.stderr
        disturb(mix, job, DISTURBED_S / 2)
        job.until(lambda: RAISED in written(job), "what format 2 allows")
        assert_readable(job, mix.variables)
        admitted = [fact.get("format") for fact in job.facts("member.admitted")]
        assert set(admitted) == {2}
        job.complete()
    for parts in (MixedStack.parts, ("daemon",)):
        refused = rover("up", "--detach", home=mix.home, **mix.variables | {"MIXED_PARTS": ",".join(parts)})
        assert refused.returncode == 9, refused.stderr
        assert "go on with release 0.4.0 or a later one, or restore a backup" in refused.stderr


def test_a_new_stack_of_this_release_is_refused_to_the_former_one(former: Path, tmp_path: Path) -> None:
    new = MixedStack(tmp_path, former, frozenset())
    new.makes_a_stack()
    refused = rover(
        "up", "--detach", home=new.home, **new.variables | {"MIXED_PARTS": ",".join(MixedStack.parts)}
    )
    assert refused.returncode == 9, refused.stderr
    assert "restore a backup from before the format was raised" in refused.stderr


def written(job: SmallJob) -> set[str]:
    """Return the types of what is stored of the members that shall be."""

    async def read(bus: NatsBus) -> set[str]:
        subject = job_facts(job.name, "members.desired")
        return {type_of(each.body) async for each in bus.read(FACTS, subject)}

    home = Home(job.home)
    return visit(Address(home.read_record().url, home.secret_file, home), read)


def test_the_interpreter_of_each_part_is_known() -> None:
    """A part that no process is taken for would make every mix of it a run of one release."""
    serve = ["python", "-m", "rover_bus.cli.serve"]
    assert part_of([*serve, "master", "--job", "j", "--index", "0"], {}) == "master"
    assert part_of([*serve, "master", "--job", "j", "--index", "1"], {}) == "standby"
    roles = {"ps": "server", "web": "command"} | {
        each: each for each in ("brain", "daemon", "operator", "node-agent")
    }
    assert {role: part_of([*serve, role], {}) for role in roles} == roles
    assert part_of([*serve, "node-agent"], {"ROVER_ROLE": "ps"}) == "node-agent"
    assert part_of(["python", "-m", "rover_bus.node.local.lone_trial"], {}) == "trial"
    assert part_of(["python", "-m", "rover_bus.cli.entry", "up"], {}) == "command"
    assert part_of(["python", "tests/rigs/pod_stacks.py", "state"], {}) == "command"
    assert part_of(["python", "train.py"], {"ROVER_ROLE": "worker"}) == "library"
    assert part_of(["python", "-I", "-S", "-c", "shim"], {}) == ""
