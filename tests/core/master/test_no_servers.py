"""A job without servers has no part to stage: no cut is opened for it, and one that is asked for is declined by name."""

from __future__ import annotations

import pytest

from rover_bus.events.checkpoint_facts import CheckpointDeclined, CheckpointOpened
from rover_bus.events.data_facts import EpochOpened
from rover_bus.events.job import CheckpointSpec, Dataset, DataSpec, JobSpec, RoleSpec
from rover_bus.master import cutting
from rover_bus.master.intervals import IntervalSet
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import Training
from rover_bus.master.state import OpenedJob, State


def trained(servers: int) -> State:
    """A job that has trained a while."""
    spec = JobSpec(
        name="j",
        program=["train"],
        data=DataSpec(train="t"),
        servers=RoleSpec(max_count=servers),
        checkpoint=CheckpointSpec(every_s=1.0),
    )
    state = State(job=OpenedJob(spec, "0123456789ab", 1))
    state.phase = Training()
    state.ledger = Ledger.new(Dataset(records=1000, batch_size=10, epochs=1))
    state.ledger.begin_epoch(EpochOpened(epoch=0))
    state.ledger.frontier, state.ledger.done = 50, IntervalSet.of([(0, 50)])
    return state


@pytest.mark.parametrize(("servers", "opened"), [(4, 1), (0, 0)])
def test_a_cut_is_opened_for_servers_alone(servers: int, opened: int) -> None:
    state, pace = trained(servers), cutting.CutPace()
    said = [each for now in (0.0, 100.0) for each in cutting.tick(state, pace, now)]
    assert sum(isinstance(each, CheckpointOpened) for each in said) >= opened
    assert bool(said) == bool(opened)


def test_a_cut_that_is_asked_for_is_declined_with_the_reason() -> None:
    [said] = cutting.request(trained(0), "rover down", "F:1")
    assert isinstance(said, CheckpointDeclined)
    assert "no servers" in said.reason
