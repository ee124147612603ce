"""What is decided is the same in every process: the order of a set of names is another one in each, so nothing may follow it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
HASH_SEEDS = ("1", "2", "3")

HOSTS_OF_A_PLAN = """
from rover_bus.brain.rooms import place
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import keep_totals
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

held = Size(workers=6, servers=1, worker_cores=2.0, server_cores=1.0)
hosts = [f"host-{number}" for number in range(8)]
role = {"cores": 1.0, "max_cores": 4.0}
spec = JobSpec(
    name="a", program=["a"], data=DataSpec(train="a"), workers=WorkersSpec(**role), servers=RoleSpec(**role)
)
job = KnownJob("u", spec, plan=1, held=held, cores_bind=True)
job.members = [*(Member("worker", index, 1) for index in range(6)), Member("ps", 0, 1)]
job.where = dict(zip((member.name for member in job.members), [*hosts[:6], hosts[7]]))
room = HostCapacity(cores=6.0, memory_bytes=1 << 34, cores_bind=True)
state = BrainState(hosts=dict.fromkeys(hosts, room), jobs={"a": job})
for member in job.members:
    took = 2.0 if member.role == "worker" else 1.0, 0
    state.host_load[job.where[member.name]] = job.load[job.where[member.name]] = took
keep_totals(state)
said = place(job, held.replace(workers=14, worker_cores=3.0), state).workers
assert len(said) == 8, said
print(said)
"""

HOSTS_THAT_LEFT = """
from rover_bus.brain.v1 import Brain, ClusterHost

class Told(Brain):
    def _notice(self, fact, now_s):
        print(fact)
        super()._notice(fact, now_s)

brain = Told()
brain.set_hosts({f"host-{number}": ClusterHost(cores=4) for number in range(8)}, 0.0)
brain.set_hosts({}, 1.0)
"""

JOBS_THAT_ENDED = """
from scheduler import BrainScheduler, JobInfo

scheduler = BrainScheduler()
jobs = [JobInfo(f"job-{number}", "f", 32, 1, 0.0, 0.0, 0.0, None) for number in range(8)]
scheduler.tick(0.0, jobs, {"n": 8})
end = scheduler.brain.end
scheduler.brain.end = lambda name, now_s: (print(name), end(name, now_s))
scheduler.tick(60.0, [], {"n": 8})
"""

SIMILARITY = """
from rover_bus.brain.decisions.warm_start import JobTraits, similarity

sizes = {f"size-{number}": 0.1 + 0.7 / (number + 3) for number in range(9)}
print(repr(similarity(JobTraits(sizes=sizes), JobTraits(sizes=dict.fromkeys(sizes, 1.0)))))
"""

DAMAGED_ARRAYS = """
import numpy as np
from rover_bus.flash.digests import SlotDigests, find_damage

found = find_damage({f"table-{number}": np.ones(8) for number in range(8)}, SlotDigests(of=0, arrays={}))
assert len(found) == 8, found
print(found)
"""


@pytest.mark.parametrize(
    "program",
    [HOSTS_OF_A_PLAN, HOSTS_THAT_LEFT, JOBS_THAT_ENDED, SIMILARITY, DAMAGED_ARRAYS],
    ids=["hosts of a plan", "hosts that left", "jobs that ended", "similarity", "damaged arrays"],
)
def test_it_is_the_same_whatever_the_seed_of_hashes(program: str) -> None:
    said = set()
    for seed in HASH_SEEDS:
        around = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(EXAMPLES)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=around)
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1, said
    assert said != {""}
