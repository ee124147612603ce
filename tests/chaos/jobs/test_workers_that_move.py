"""A plan moves a worker to another host: it trains on until its successor is there, and every sample is applied once.

The program takes a while to load, as a container takes to start. Nothing is asserted about time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import all_rights
import pytest
from small_job import SmallJob, hosts_up

from rover_bus.cli.stack import RunningStack
from rover_bus.client.programs import find_example
from rover_bus.events.codec import decode, encode
from rover_bus.events.envelope import read_envelope
from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.outbox import FactOut, subject_of, write_headers
from rover_bus.events.reading import BRAIN
from rover_bus.events.streams import FACTS

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
IN_STEP = Path(__file__).parents[2] / "rigs" / "in_step.py"
LATE = """
import runpy, sys, time
time.sleep(4)
program = {program!r}
sys.path.insert(0, {folder!r})
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""


def job(home: Path, folder: Path, training: str) -> SmallJob:
    inner = IN_STEP if training == "synchronous" else find_example("dlrm/train.py")
    late = folder / "late.py"
    late.write_text(LATE.format(program=str(inner), folder=str(Path(inner).parent)))
    return SmallJob(
        folder=folder,
        home=home,
        rows=4_000,
        epochs=10,
        workers=3,
        servers=1,
        pace_s=0.05,
        spares=0,
        training=training,
        inner=late,
        leases="relaunches = 0\npreemptions = 0",
        checkpoint='every = "1h"\npath = "store"',
    )


def move(stack: RunningStack, it: SmallJob, member: Member, host: str) -> None:
    """Put a plan into the stream that gives a worker another host, as the Brain does."""

    async def publish() -> None:
        bus = await all_rights.connect(stack.home.root)
        try:
            subject = subject_of(PlanProposed(job=it.name, plan=1, workers=1, servers=0))
            stored = await bus.last(FACTS, subject)
            assert stored is not None
            first = decode(stored.body, PlanProposed)
            assert first.brain_position is not None
            envelope, place = read_envelope(stored.headers), (first.brain_position[0] + 1_000, 0)
            plan = first.replace(
                plan=first.plan + 1,
                step="replace",
                replaces=[member],
                stays=[member],
                worker_hosts=[host],
                brain_position=place,
            )
            body, timeline = encode(plan), int(envelope.id.split("/")[1])
            item = FactOut(plan, place, envelope.term)
            headers = write_headers(item, body, BRAIN, timeline, envelope.source)
            await bus.append(FACTS, subject, body, headers=headers)
        finally:
            await bus.close()

    asyncio.run(publish())


def happened(it: SmallJob, *kinds: str) -> list[tuple[str, Any]]:
    """What the job's log told, in its order."""
    facts = [(tuple(fact["position"]), kind, fact) for kind in kinds for fact in it.facts(kind)]
    return [(kind, fact) for _, kind, fact in sorted(facts, key=lambda each: each[0])]


@pytest.mark.parametrize("training", ["asynchronous", "synchronous"])
def test_a_worker_that_moves_trains_until_its_successor_is_there(tmp_path: Path, training: str) -> None:
    with hosts_up(tmp_path, "h1", "h2") as hosts:
        it = job(hosts["h1"].home.root, tmp_path, training)
        it.submit()
        it.until(lambda: it.facts("plan.settled"), "all are there")
        it.until(lambda: it.facts("job.reported"), "it trains")
        wanted = {each["member"]["index"]: each for each in it.facts("members.desired")[-1]["members"]}
        there = wanted[2]["host"]
        move(hosts["h1"], it, Member("worker", 2, 1), "h2" if there == "h1" else "h1")
        it.until(lambda: any(fact["plan"] == 2 for fact in it.facts("plan.settled")), "it has moved")
        told = happened(it, "members.desired", "member.left", "member.lost", "member.admitted")
        (kept,) = (at for at, (kind, fact) in enumerate(told) if fact.get("former"))
        (freed,) = (at for at, (kind, fact) in enumerate(told) if kind == "members.desired" and at > kept)
        assert [kind for kind, _ in told[kept:]] == [
            "members.desired",
            "members.desired",
            "member.left",
            "member.admitted",
        ]
        assert "successor" in told[freed][1]["reason"]
        assert [str(told[at][1]["member"]["incarnation"]) for at in (kept + 2, kept + 3)] == ["1", "2"]
        if training == "synchronous":
            groups = [[each["incarnation"] for each in fact["members"]] for fact in it.facts("group.formed")]
            assert groups == [[1, 1, 1], [1, 1, 2]], "no group was without it"
        it.complete()
        assert it.facts("member.lost") == []
