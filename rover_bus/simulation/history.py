"""One history, from seed to verdict: submit a job, let it train while blows fall, judge the witness.

Used by `rover simulate`, by the simulation ring of the tests, and by named histories that switch one rule off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rover_bus.events import subjects, virtual_time
from rover_bus.events.bus import MESSAGE_ID, Bus, Stored
from rover_bus.events.codec import encode
from rover_bus.events.errors import BadMessage, BusError, RoverError
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec, LeaseSpec, PlanSpec, RoleSpec, WorkersSpec
from rover_bus.events.reading import read_fact
from rover_bus.events.standing import stand_by
from rover_bus.events.streams import FACTS
from rover_bus.ps.simulated import SimulatedServers
from rover_bus.simulation.cluster import JOB, Cluster
from rover_bus.simulation.members import Shared
from rover_bus.simulation.plan import Plan, chance_of, draw
from rover_bus.simulation.rules import PRODUCT, Rules
from rover_bus.simulation.verdict import Verdict, judge

LONGEST_S = 600.0  # of virtual time: a history that takes longer is stuck


class HistoryStuck(RoverError):
    """A history did not end. The seed replays it."""

    code = "history_stuck"


def live(
    seed: int | Plan,
    *,
    say: Callable[[float, str], None] = lambda _at_s, _what: None,
    rules: Rules = PRODUCT,
) -> Verdict:
    """Live the history of a seed and judge it. `say(virtual seconds, what)` hears what happens; `rules`: what it is built from."""
    plan = seed if isinstance(seed, Plan) else draw(seed)
    return virtual_time.run(_live(plan, say, rules))


async def _live(plan: Plan, say: Callable[[float, str], None], rules: Rules) -> Verdict:
    loop = asyncio.get_running_loop()
    broker = rules.broker(plan.seed, plan.faults)
    shared = _shared(plan, say, rules)
    cluster = Cluster(broker, shared)
    bus = broker.connect("people")
    cluster.start_brain()
    cluster.start_daemon()
    cluster.start_storage()
    try:
        fact = _submission(plan, rules)
        await _insist(lambda: _hand_in(bus, fact))
        standing = asyncio.ensure_future(
            stand_by(bus, subjects.job_fact(JOB, fact.kind()), lambda: _hand_in(bus, fact))
        )
        ended = asyncio.ensure_future(_ended(bus))
        striking = asyncio.ensure_future(_strike(cluster, plan))
        try:
            async with asyncio.timeout(LONGEST_S):
                end = await ended
        except TimeoutError:
            raise HistoryStuck(f"seed {plan.seed} did not end within {LONGEST_S:.0f} s") from None
        finally:
            striking.cancel()
            standing.cancel()
        say(loop.time(), f"the job is {end.state} {end.reason}".rstrip())
    finally:
        await cluster.shut_down()
    parts = [shared.parts[path] for path in end.summary.get("parts", []) if path in shared.parts]
    verdict = judge(plan, end.state, f"{end.reason} {end.detail}".strip(), end.summary, parts)
    return verdict.and_also(f"after {record} {why}" for why, record in shared.broken.items())


def _shared(plan: Plan, say: Callable[[float, str], None], rules: Rules) -> Shared:
    loop = asyncio.get_running_loop()
    network = SimulatedServers(
        chance_of(plan.seed, "network"),
        asyncio.sleep,
        drop=plan.drop,
        double=plan.double,
        delay_s=plan.delay_s,
    )
    return Shared(
        plan,
        network,
        chance_of(plan.seed, "training"),
        lambda what: say(loop.time(), what),
        rules=rules,
    )


async def _strike(cluster: Cluster, plan: Plan) -> None:
    loop = asyncio.get_running_loop()
    for blow in plan.blows:
        await asyncio.sleep(max(0.0, blow.at_s - loop.time()))
        await cluster.blow(blow)


def _submission(plan: Plan, rules: Rules) -> JobSubmitted:
    spec = JobSpec(
        name=JOB,
        program=["train"],
        data=DataSpec(train="simulated", batch_size=plan.batch_size, epochs=plan.epochs, seed=plan.seed),
        workers=WorkersSpec(
            count=plan.workers,
            max_count=plan.most_workers,
            training="synchronous" if plan.synchronous else "asynchronous",
        ),
        plan=PlanSpec(window_s=2 * plan.sample_s or 4.0, cooldown_s=5.0),
        servers=RoleSpec(count=plan.servers),
        leases=LeaseSpec(
            target_s=plan.target_s, heartbeat_s=1.0, deterministic_failures=1000, relaunches=10_000
        ),
        on_server_lost=rules.on_server_lost or ("restore" if plan.cut_every_s else "restart"),
        on_no_usable_checkpoint="restart",  # there is no person who could be asked
        checkpoint=CheckpointSpec(every_s=plan.cut_every_s, persist=plan.stored)
        if plan.cut_every_s
        else None,
    )
    return JobSubmitted(job=JOB, spec=spec, uid=f"{plan.seed:012x}")


async def _hand_in(bus: Bus, fact: JobSubmitted) -> int:
    return await bus.append(
        FACTS, subjects.job_fact(JOB, fact.kind()), encode(fact), headers={MESSAGE_ID: "submit"}
    )


async def _ended(bus: Bus) -> JobEnded:
    """Return the end as a submitter hears it: what was told once was told, also if the broker forgets it."""
    told: asyncio.Future[JobEnded] = asyncio.get_running_loop().create_future()

    def observe(stored: Stored) -> None:
        with suppress(BadMessage):  # a forged end is none
            fact = read_fact(stored)
            if isinstance(fact, JobEnded) and not told.done():
                told.set_result(fact)

    following = await _insist(
        lambda: bus.follow(FACTS, [subjects.job_facts(JOB, "job.ended")], observe, start="first")
    )
    try:
        return await told
    finally:
        await following.stop()


async def _insist(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return await call()
        except BusError:
            await asyncio.sleep(0.1)
