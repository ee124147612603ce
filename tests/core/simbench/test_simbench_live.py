"""The live Brain as a policy is told what a cluster would tell it."""

from __future__ import annotations

from dataclasses import replace

from bench.simulation import worlds
from bench.simulation.generator import generate
from bench.simulation.policies.live import LiveBrain, host_of
from bench.simulation.port import ClusterView, JobView, Setting, Wanted

SETTING = Setting(worlds.W1.menu, 3)


def test_the_room_of_what_was_decided_is_kept_until_the_engine_carries_it_out() -> None:
    """Where a plan was made between two looks, the Brain was told at the next one that nothing had moved: the room that it had
    taken for that plan was others' again, and two jobs were sent to one host.
    """
    case = generate(worlds.W1(), 3, jobs=4).cases[0]
    policy, hosts = LiveBrain(SETTING), [(32.0, 256.0)] * 4
    waits = JobView(case, "waiting", None, None, 0.0, False, 0.0)
    (first,) = policy.plan(ClusterView([waits], 128.0, 1024.0, 128.0, 1024.0, 256.0, hosts), 0.0, False)
    assert isinstance(first, Wanted)
    runs = replace(
        waits,
        state="running",
        held=first.size,
        worker_hosts=first.worker_hosts,
        server_hosts=first.server_hosts,
    )
    policy.follow(runs)
    run = policy.brain._runs[case.name]
    run.workers = [*run.workers, "n00003"]
    run.placed = run.placed.replace(worker_hosts=run.workers)
    decided = list(run.workers)
    policy.follow(runs)
    assert run.workers == decided
    here = (*first.worker_hosts, 2)
    carried_out = first.size._replace(workers=len(here))
    policy.follow(replace(runs, held=carried_out, worker_hosts=here))
    assert run.workers == [host_of(number) for number in here], "the engine found room elsewhere"
