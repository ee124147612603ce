"""What the Brain makes of a job that began with the first of its servers (docs/design/0046)."""

from __future__ import annotations

from brain_states import GIB, size, waits

from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import FactObserved, WindowClosed
from rover_bus.brain.state import BrainState, Change
from rover_bus.events.facts import PlanSettled


def window(first: int, second: int) -> WindowClosed:
    sizes = {"ps-0": first, "ps-1": second}
    return WindowClosed(job="j", seconds=4.0, clean=True, server_bytes=sizes)


def test_what_servers_held_before_the_slots_lay_evenly_says_nothing_of_their_growth() -> None:
    job = waits("j")
    job.held = size(2, servers=2)
    job.change = Change(
        plan=1, step="start", before=job.held, after=job.held, predicted=0.0, since_s=0.0, applied=True
    )
    state = BrainState(jobs={"j": job})
    evolve(state, window(3 * GIB, 0))
    evolve(state, window(2 * GIB, GIB))
    evolve(state, FactObserved(fact=PlanSettled(job="j", plan=1, members_plan=1)))
    assert job.memory == {}
    assert job.change is None
    evolve(state, window(2 * GIB, 2 * GIB))
    assert {name: len(points) for name, points in job.memory.items()} == {"ps-0": 1, "ps-1": 1}
