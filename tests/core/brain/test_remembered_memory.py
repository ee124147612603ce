"""A family is remembered by the memory that its runs used, not by what they were given."""

from __future__ import annotations

import pytest

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.plans import GIB, Allocation
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob
from rover_bus.brain.sizing import MORE_THAN_USED, first_size
from rover_bus.brain.state import BrainState
from rover_bus.events import facts
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.inputs import Observed, TookOver
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec

ASKED = 238 * GIB  # a server, of which its run used a fifth
USED = 48 * GIB


def spec(name: str, relief: bool = True, servers: int = 1) -> JobSpec:
    return JobSpec(
        name=name,
        program=["x"],
        data=DataSpec(train="t"),
        servers=RoleSpec(count=servers, memory_bytes=ASKED),
        plan=PlanSpec(relief=relief),
        labels={"family": "f"},
    )


def past(tables: int) -> PastJob:
    final = Allocation(workers=2, servers=2, server_memory_bytes=ASKED)
    traits = JobTraits(family="f", dataset="t")
    return PastJob(job="before", traits=traits, final=final, ended_at_s=0.0, tables_bytes=tables)


def begins_with(history: list[PastJob], **how: object) -> int:
    state = BrainState(hosts={"h": HostCapacity(cores=64, memory_bytes=1 << 40)}, past=history)
    return first_size(spec("next", **how), state)[0].server_memory_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_run_begins_with_what_its_family_used_and_half_as_much_more(servers: int) -> None:
    """Servers of what the first user had asked for waited hours for an empty host, run after run."""
    limit = begins_with([past(USED)], servers=servers)
    assert limit * servers == pytest.approx(MORE_THAN_USED * USED, rel=1e-6)


def test_the_run_that_used_most_counts() -> None:
    assert begins_with([past(USED), past(USED // 2)]) == begins_with([past(USED)])


def test_what_was_not_measured_or_follows_no_forecast_is_as_it_was_given() -> None:
    assert begins_with([past(0)], servers=2) == ASKED
    assert begins_with([past(USED)], servers=2, relief=False) == ASKED, "too little would stay"


@pytest.mark.parametrize(("seen", "together"), [([40, 50], 100 * GIB), ([40], 0), ([], 0)])
def test_what_all_servers_used_is_remembered_when_a_run_ends(seen: list[int], together: int) -> None:
    """Each as much as the largest: another run may spread its tables otherwise."""
    brain = BrainDecider(1)
    brain.decide(TookOver("b", 1), 0.0)
    brain.decide(Observed(facts.JobSubmitted(job="j", spec=spec("j", servers=2), uid="u"), "x"), 0.0)
    known = brain.state.jobs["j"]
    known.held = facts.Size(workers=1, servers=2, server_memory_bytes=ASKED)
    known.members = [Member("ps", 0, 1), Member("ps", 1, 1)]
    known.memory = {f"ps-{index}": [(1.0, GIB), (2.0, gib * GIB)] for index, gib in enumerate(seen)}
    brain.decide(Observed(facts.JobEnded(job="j", state="completed"), "x"), 1.0)
    assert [each.tables_bytes for each in brain.state.past] == [together]
