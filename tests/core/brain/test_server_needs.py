"""What a server needs with its next cuts is what its memory is forecast from, once it says so itself."""

from __future__ import annotations

from brain_states import GIB, size, waits

from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import WindowClosed
from rover_bus.brain.memory_relief import danger_of, needs_of
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events.host_facts import HostCapacity
from rover_bus.events.identity import Member


def windows(job: KnownJob, *pairs: tuple[int, int]) -> BrainState:
    """Return the state after windows with what a host sees of one server, and with what that says that it needs (0: nothing)."""
    state = BrainState(jobs={"j": job}, hosts={"h": HostCapacity(cores=8.0, memory_bytes=64 * GIB)})
    for used, needed in pairs:
        job.samples += 1000
        needs = {"ps-0": needed} if needed else {}
        evolve(
            state,
            WindowClosed(job="j", seconds=4.0, clean=True, server_bytes={"ps-0": used}, server_needs=needs),
        )
    return state


def one_server(limit: int) -> KnownJob:
    job = waits("j")
    job.held = size(2, servers=1).replace(server_memory_bytes=limit)
    job.members = [Member("ps", 0, 1)]
    job.total = 100_000
    return job


def test_from_the_first_word_of_a_server_on_what_its_host_sees_is_no_point_of_its_growth() -> None:
    job = one_server(16 * GIB)
    windows(job, (GIB, 0), (GIB, 0))
    assert [used for _, used in job.memory["ps-0"]] == [GIB, GIB]
    windows(job, (GIB, 4 * GIB), (GIB, 0), (2 * GIB, 5 * GIB))
    assert [used for _, used in job.memory["ps-0"]] == [4 * GIB, 5 * GIB]


def test_a_limit_that_the_next_cuts_would_meet_is_raised_before_they_are_taken() -> None:
    """A table of one GiB, and two slots with room to grow: the first two cuts would take what is left."""
    job = one_server(3 * GIB)
    state = windows(job, *((GIB + step, 4 * GIB + step) for step in range(1, 6)))
    [need] = needs_of("j", job, state)
    assert need.relief.limit_bytes > 4 * GIB
    said = danger_of(need.relief, need.used_bytes, 3 * GIB)
    assert said == "4,096 MiB are needed once its next cuts are staged, and 3,072 are its limit"
    seen = one_server(3 * GIB)
    assert not needs_of("j", seen, windows(seen, *((GIB + step, 0) for step in range(1, 6))))
