"""Objects live on a real API server and a real broker: handed in, shown, suspended, over; whenever their operator dies."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import Cluster
from object_lives import SPEC, Mortal, Stage, Unwatching, condition, is_in
from patience import PATIENCE_S

from rover_bus.client.job_file import read_job
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.facts import JobEnded, JobForgotten, JobReported, JobSubmitted, MemberLost, PlanSettled
from rover_bus.events.identity import Member
from rover_bus.kube.crd import resource_definition
from rover_bus.kube.object import job_of, manifest_of
from rover_bus.kube.roverjobs import RoverJob, uid_of
from rover_bus.kube.service import identify

EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs" / "criteo.toml"
Scene = Callable[[Stage], Coroutine[Any, Any, None]]
SILENT = frozenset({"job.stop_requested"})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def stage(installed: Cluster, broker: EmbeddedBroker, namespace: str) -> Stage:
    return Stage(installed, broker, namespace, f"clicks-{namespace}")


def play(stage: Stage, scene: Scene, silent: frozenset[str] = frozenset()) -> None:
    async def main() -> None:
        async with stage.played(silent):
            await scene(stage)

    asyncio.run(main())


def is_gone(object_: RoverJob | None) -> bool:
    return object_ is None


def test_a_life_from_apply_to_the_end(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator():
            await stage.apply()
            await stage.until(is_in("Running"))
            await stage.master.say(
                JobReported(epoch=0, committed=500, dead_lettered=1, total=2000, samples_per_second=99.6)
            )
            await stage.master.say(PlanSettled(plan=1))  # written at once, and progress with it
            await stage.until(lambda object_: object_ and object_.status.get("goodput") == "100/s")
            shown = stage.cluster.kubectl("-n", stage.ref.namespace, "get", "rj").stdout.split()
            assert shown[7:13] == [stage.ref.name, "1", "0", "1/2", "100/s", "Running"]
            await stage.master.say(
                MemberLost(member=Member("worker", 0, 1), reason="out_of_memory", detail="limit 2 GiB")
            )
            summary = {"samples_total": 2000, "samples_committed": 1999, "result": {"auc": 0.78}}
            await stage.master.say(JobEnded(state="completed", summary=summary))
            over = await stage.until(lambda object_: object_ and not object_.metadata.finalizers)
            assert over is not None
            assert condition(over, "Complete") == "True Completed"
            assert condition(over, "Running") == "False Ended"
            assert over.status["result"] == {"samples_total": 2000, "samples_committed": 1999, "auc": 0.78}
            assert {each["observedGeneration"] for each in over.status["conditions"]} == {1}
        described = stage.cluster.kubectl("-n", stage.ref.namespace, "describe", "rj", stage.ref.name).stdout
        for words in (
            "Submitted",
            "PlanApplied",
            "worker-0.1 is lost: out_of_memory (limit 2 GiB)",
            "Completed",
        ):
            assert words in described

    play(stage, scene)


def test_an_applied_example_is_the_job_that_rover_submit_hands_in(
    stage: Stage, broker: EmbeddedBroker
) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator():
            given = json.dumps(manifest_of(EXAMPLE, stage.ref.name))
            applied = stage.cluster.kubectl("-n", stage.ref.namespace, "apply", "-f", "-", given=given)
            assert applied.returncode == 0, applied.stderr
            await stage.until(is_in("Running"))
            (fact,) = stage.master.asked("job.submitted")
            assert isinstance(fact, JobSubmitted)
            here = read_job(EXAMPLE, name=stage.ref.name)
            # The one is of a folder of this machine, the other of an image; both are of the tenant that they are submitted to.
            placed = here.replace(
                directory="",
                data=here.data.replace(
                    train=Path(here.data.train).name,
                    evaluate=here.data.evaluate and Path(here.data.evaluate).name,
                ),
                checkpoint=fact.spec.checkpoint,
                plan=here.plan.replace(tenant="default"),
            )
            assert fact.spec == placed

    play(stage, scene)


def test_a_deleted_object_goes_when_its_job_has_ended(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator():
            await stage.apply()
            await stage.until(is_in("Running"))
            stage.cluster.kubectl("-n", stage.ref.namespace, "delete", "rj", stage.ref.name, "--wait=false")
            held = await stage.until(is_in("Ending"))
            assert held is not None
            assert stage.master.asked("job.stop_requested")
            await asyncio.sleep(1.0)  # nothing but the end of its job lets it go
            assert await stage.look() is not None
            await stage.master.say(JobEnded(state="cancelled", reason="asked"))
            await stage.until(is_gone)

    play(stage, scene, SILENT)


def test_the_object_suspends_and_a_person_writes_the_object(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        from rover_bus.events.facts import JobPauseRequested

        async with stage.operator():
            await stage.apply(suspend=True)
            await stage.until(is_in("Suspended"))
            assert stage.master.heard == [], "nothing is handed in"
            await stage.apply(suspend=False)
            await stage.until(is_in("Running"))
            await stage.apply(suspend=True)
            away = await stage.until(is_in("Suspended"))
            assert condition(away, "Suspended") == "True Asked"
            await stage.apply(suspend=False)
            await stage.until(is_in("Running"))
            await stage.master.say(JobPauseRequested(by="ann", reason="lunch"))
            away = await stage.until(is_in("Suspended"))
            assert away is not None
            assert away.spec["suspend"] is True
            await stage.apply(suspend=False)
            await stage.until(is_in("Running"))

    play(stage, scene)


def test_a_deadline_and_a_time_to_live(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator():
            await stage.apply(activeDeadlineSeconds=1, ttlSecondsAfterFinished=1)
            over = await stage.until(is_in("Failed"))
            assert condition(over, "Failed") == "True DeadlineExceeded"
            await stage.until(is_gone)

    play(stage, scene)


def test_a_name_is_free_again_when_its_object_is_gone(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator():
            await stage.apply()
            await stage.until(is_in("Running"))
            await stage.master.say(JobEnded(state="failed", reason="server_lost"))
            await stage.until(is_in("Failed"))
            stage.cluster.kubectl("-n", stage.ref.namespace, "delete", "rj", stage.ref.name)
            await stage.until(is_gone)
            await stage.apply()
            await stage.until(is_in("Running"))
            (forgotten,) = stage.master.asked("job.forgotten")
            assert isinstance(forgotten, JobForgotten)
            first, second = stage.master.asked("job.submitted")
            assert isinstance(first, JobSubmitted)
            assert isinstance(second, JobSubmitted)
            assert forgotten.uid == first.uid != second.uid

    play(stage, scene)


def test_what_a_list_does_not_show_is_looked_for_before_its_job_is_ended(stage: Stage) -> None:
    """A job was handed in for an object that is younger than the list of this operator, and whose watch is late."""

    async def scene(stage: Stage) -> None:
        Unwatching.listed = asyncio.Event()
        async with stage.operator(api_class=Unwatching), asyncio.timeout(PATIENCE_S):
            await Unwatching.listed.wait()
            await stage.apply()
            made = await stage.look()
            assert made is not None
            by = f"kubernetes/{stage.ref.namespace}/{await identify(stage.api)}"
            job = job_of({"metadata": {"name": stage.ref.name}, "spec": SPEC})
            await stage.master.say(JobSubmitted(job="", uid=uid_of(made.metadata), spec=job, by=by))
            await stage.until(is_in("Running"))
            assert stage.master.asked("job.stop_requested") == []

    play(stage, scene)


def test_a_status_that_the_api_server_does_not_keep_is_written_ever_more_rarely(stage: Stage) -> None:
    """The definition in the cluster is of a release that lacks a field."""
    definition = resource_definition()
    older = copy.deepcopy(definition)
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][
        "members"
    ]

    async def scene(stage: Stage) -> None:
        async with stage.operator() as mortal:
            await stage.apply()
            await stage.until(is_in("Running"))
            await stage.master.say(PlanSettled(plan=1))
            before = mortal.done
            await asyncio.sleep(3.0)
            assert mortal.done - before < 10

    stage.cluster.kubectl("replace", "-f", "-", given=json.dumps(older))
    try:
        play(stage, scene)
    finally:
        stage.cluster.kubectl("replace", "-f", "-", given=json.dumps(definition))


async def live(stage: Stage, mortal: Mortal) -> None:
    """Handed in, suspended, resumed, over: as far as the operator lives. What a former one saw happen is not done again."""
    master = stage.master
    begun = await stage.look()
    # The master may not have heard the last word of an operator that died; the object says how far it was.
    is_resumed = begun is not None and not begun.is_suspended and master.asked("job.pause_requested")
    if not is_resumed:
        if begun is None or not begun.is_suspended:
            await stage.apply()
            await stage.until(is_in("Running"), mortal)
            if mortal.dead:
                return
        await stage.apply(suspend=True)
        await stage.until(is_in("Suspended"), mortal)
        if mortal.dead:
            return
    await stage.apply(suspend=False)
    await stage.until(
        lambda seen: master.asked("job.resumed") and (is_in("Running")(seen) or is_over(seen)), mortal
    )
    if mortal.dead:
        return
    if not master.asked("job.ended"):
        await master.say(JobEnded(state="completed", summary={"samples_total": 7}))
    await stage.until(lambda seen: is_over(seen) and seen and not seen.metadata.finalizers, mortal)


is_over = is_in("Complete")


async def finish(stage: Stage) -> dict[str, Any]:
    """See a life to its end with an operator that does not die; return what is to be the same whatever happened."""
    async with stage.operator() as mortal:
        await live(stage, mortal)
    over = await stage.look()
    assert over is not None
    kinds = ("job.submitted", "job.pause_requested", "job.resume_requested", "job.ended")
    return {
        "asked": {kind: len(stage.master.asked(kind)) for kind in kinds},
        "conditions": {each["type"]: (each["status"], each["reason"]) for each in over.status["conditions"]},
        "events": sorted(reason for reason, _ in await stage.events()),
        "result": over.status["result"],
    }


def test_an_operator_that_dies_after_each_of_its_writes(installed: Cluster, broker: EmbeddedBroker) -> None:
    """Each of these lives is in a namespace of its own, all at once."""

    def stage(number: int) -> Stage:
        name = f"dying-{number}"
        installed.kubectl("create", "namespace", name)
        return Stage(installed, broker, name, f"clicks-{number}")

    async def whole(stage: Stage) -> tuple[int, dict[str, Any]]:
        async with stage.played():
            async with stage.operator() as mortal:
                await live(stage, mortal)
                writes = mortal.done
            return writes, await finish(stage)

    async def broken(stage: Stage, writes: int) -> dict[str, Any]:
        async with stage.played():
            async with stage.operator(Mortal(writes)) as mortal:
                await live(stage, mortal)
            return await finish(stage)

    async def main() -> None:
        writes, wanted = await whole(stage(0))
        assert writes > 12, "finalizer, submission, status and Events of each step"
        stages = [stage(number) for number in range(1, writes + 1)]
        found = await asyncio.gather(*(broken(each, at) for at, each in enumerate(stages, 1)))
        assert [each for each in found if each != wanted] == []

    asyncio.run(main())
