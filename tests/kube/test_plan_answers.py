"""A person answers a plan that waits by an object: on a real API server and a real broker, whenever the operator dies."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from kube_cluster import Cluster
from object_lives import Mortal, Stage, is_in
from patience import PATIENCE_S

from rover_bus.events import facts as f
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.fact import JobFact
from rover_bus.kube import name_policy
from rover_bus.kube.api import ApiRefused
from rover_bus.kube.plan_answers import PLAN_ANSWER, answer_of
from rover_bus.kube.roverjobs import ROVER_JOB
from rover_bus.kube.service import identify

PLAN = 7
POLICY = "names-of-answers"
PINS = "true"  # every name: how the chart's policy compares is tried in test_people_of_the_chart.py
OBJECTS: list[dict[str, Any]] = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["rover-bus.io"],
                        "apiVersions": ["*"],
                        "operations": ["CREATE"],
                        "resources": ["plananswers"],
                    }
                ]
            },
            "validations": [{"expression": PINS}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    },
]
Scene = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(autouse=True)
def policy(installed: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A policy that is in force at once."""
    monkeypatch.setattr(name_policy, "SETTLES_S", 0.0)
    made = "\n---\n".join(map(json.dumps, OBJECTS))
    assert installed.kubectl("apply", "-f", "-", given=made).returncode == 0
    yield
    installed.kubectl("delete", "-f", "-", given=made)


@pytest.fixture
def stage(installed: Cluster, broker: EmbeddedBroker, namespace: str) -> Stage:
    return Stage(installed, broker, namespace, f"clicks-{namespace}")


def play(stage: Stage, scene: Scene) -> None:
    async def main() -> None:
        async with stage.played():
            await scene(stage)

    asyncio.run(main())


async def waits(stage: Stage) -> None:
    """Have the object there, and a plan of its job that waits."""
    await stage.apply()
    await stage.until(is_in("Running"))
    await stage.master.say(f.PlanProposed(plan=PLAN, workers=2, servers=0, mode="approve"))
    await stage.master.say(f.PlanChecked(plan=PLAN, outcome="waits"))


async def answers(stage: Stage) -> list[dict[str, Any]]:
    """The answers of the namespace, the oldest first."""
    path = f"/apis/rover-bus.io/v1alpha1/namespaces/{stage.ref.namespace}/plananswers"
    found: list[dict[str, Any]] = json.loads(await stage.api.call("GET", path))["items"]
    return sorted(found, key=lambda each: int(each["metadata"]["resourceVersion"]))


async def create(stage: Stage, name: str, plan: int = PLAN, answer: Any = "Approve", by: str = "ann") -> None:
    """Have an answer there; no policy of this cluster minds its name."""
    body = answer_of(stage.ref.name, plan, answer, by, "it pays")
    body["metadata"] = {"name": name}
    try:
        await stage.api.create(PLAN_ANSWER, stage.ref.namespace, body)
    except ApiRefused as error:
        if error.status != 409:
            raise


async def settled(stage: Stage, name: str, mortal: Mortal | None = None) -> dict[str, Any]:
    """Return an answer once something became of it, or the operator is dead."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = next((each for each in await answers(stage) if each["metadata"]["name"] == name), {})
            if found.get("status", {}).get("state") or (mortal is not None and mortal.dead):
                return found
            await asyncio.sleep(0.05)


def words(stage: Stage) -> list[JobFact]:
    return [*stage.master.asked("plan.approved"), *stage.master.asked("plan.rejected")]


async def fact_heard(stage: Stage, claim: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():  # noqa: ASYNC110 - it is a broker that is waited for
            await asyncio.sleep(0.02)


def test_what_the_object_shows_is_a_command_that_answers(stage: Stage) -> None:
    """The command is run by a shell as it stands; the name in it is the user's."""

    async def scene(stage: Stage) -> None:
        async with stage.operator(policy=POLICY):
            await waits(stage)
            seen = await stage.until(lambda seen: "kubectl" in message_of(seen))
            command = message_of(seen).partition("; or ")[2].removesuffix(" (or Reject)")
            created = run_in_a_shell(stage, command)
            whoami = stage.cluster.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
            name = created.partition("/")[2].split()[0]
            became = await settled(stage, name)
            await fact_heard(stage, lambda: words(stage))
            (word,) = words(stage)
            cluster = await identify(stage.api)
            assert isinstance(word, f.PlanApproved)
            assert (word.plan, word.by) == (
                PLAN,
                f"kubernetes/{stage.ref.namespace}/{cluster}/{whoami.stdout}",
            )
            assert became["status"]["state"] == "Given"
            assert became["status"]["fact"] > 0
            made = await stage.look()
            assert made is not None
            assert [each["uid"] for each in became["metadata"]["ownerReferences"]] == [made.metadata.uid]
            await stage.until(lambda seen: "kubectl" not in message_of(seen))

    play(stage, scene)


def run_in_a_shell(stage: Stage, command: str) -> str:
    """Return what a command prints that is written in words of `kubectl`."""
    words = " ".join(stage.cluster.command)
    done = subprocess.run(
        ["bash", "-c", f'kubectl() {{ {words} "$@"; }}; {command}'],
        env=os.environ | stage.cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def message_of(object_: Any) -> str:
    """What the condition Running says."""
    found = object_.status.get("conditions", []) if object_ is not None else []
    return next((str(each["message"]) for each in found if each["type"] == "Running"), "")


def test_answers_to_other_plans_and_second_answers_do_nothing_and_say_so(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator(policy=POLICY):
            await waits(stage)
            await create(stage, "other", plan=PLAN - 1)
            became = await settled(stage, "other")
            assert became["status"]["reason"] == "OtherPlanWaits"
            assert words(stage) == []
            await create(stage, "no", answer="Reject")
            assert (await settled(stage, "no"))["status"]["reason"] == "Rejected"
            await create(stage, "yes")
            second = (await settled(stage, "yes"))["status"]
            assert (second["state"], second["reason"]) == ("Refused", "AnsweredBefore")
            assert "/ann before" in second["message"]
            assert [each.kind() for each in words(stage)] == ["plan.rejected"]

    play(stage, scene)


def test_without_a_policy_an_answer_is_refused(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator():
            await waits(stage)
            await create(stage, "blind")
            became = await settled(stage, "blind")
            assert (became["status"]["state"], became["status"]["reason"]) == ("Refused", "NameNotProven")
            seen = await stage.until(lambda seen: "waits for a person" in message_of(seen))
            assert "kubectl" not in message_of(seen), "what would be refused is not proposed"
        assert words(stage) == []

    play(stage, scene)


async def refused(stage: Stage, name: str, why: str) -> None:
    await create(stage, name)
    became = (await settled(stage, name))["status"]
    assert (became["state"], became["reason"]) == ("Refused", "NameNotProven")
    assert why in became["message"]


def test_a_name_from_before_the_policy_was_in_force_proves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a first install, or where the policy was taken away: who may create answers could write any name."""

    async def scene(stage: Stage) -> None:
        async with stage.operator(policy=POLICY):
            await waits(stage)
            monkeypatch.setattr(name_policy, "SETTLES_S", 600.0)
            await refused(stage, "early", "create it again")
            monkeypatch.setattr(name_policy, "SETTLES_S", 0.0)
            stage.cluster.kubectl("delete", "validatingadmissionpolicybinding", POLICY)
            await refused(stage, "free", "is not in force")
            assert words(stage) == []

    play(stage, scene)


def test_an_answer_cannot_be_changed_and_goes_with_its_job(stage: Stage) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.operator(policy=POLICY):
            await waits(stage)
            await create(stage, "mine")
            await settled(stage, "mine")
            change = ("--type=merge", "-p", '{"spec": {"answer": "Reject"}}')
            refused = stage.cluster.kubectl("-n", stage.ref.namespace, "patch", "plananswer", "mine", *change)
            assert "an answer is never changed" in refused.stderr
            await stage.master.say(f.JobEnded(state="completed", summary={}))
            await stage.until(is_in("Complete"))
            await stage.api.delete(ROVER_JOB, stage.ref)
            async with asyncio.timeout(PATIENCE_S):
                while await answers(stage):  # noqa: ASYNC110 - the garbage collector is waited for
                    await asyncio.sleep(0.2)

    play(stage, scene)


async def live(stage: Stage, mortal: Mortal) -> None:
    """The plan that waits is answered: as far as the operator lives."""
    await create(stage, "mine")
    await settled(stage, "mine", mortal)


async def begin(stage: Stage) -> None:
    """An operator sees a plan wait, and ends."""
    async with stage.operator(policy=POLICY):
        await waits(stage)
        await stage.until(lambda seen: "waits for" in message_of(seen))


async def finish(stage: Stage) -> dict[str, Any]:
    """See it to its end with an operator that does not die; return what is to be the same whatever happened."""
    async with stage.operator(policy=POLICY) as mortal:
        await live(stage, mortal)
        (became,) = await answers(stage)
        await stage.until(lambda seen: seen and "waits for" not in message_of(seen))
    given = became["status"]
    owners = [each["name"].partition("-")[0] for each in became["metadata"]["ownerReferences"]]
    stated = [(type(each), each.by.rpartition("/")[2], getattr(each, "plan", 0)) for each in words(stage)]
    return {
        "status": (given["state"], given["reason"], given["fact"] > 0),
        "owners": owners,
        "stated": stated,
        "events": sorted(reason for reason, _ in await stage.events()),
    }


def test_an_operator_that_dies_after_each_of_its_writes_answers_once(
    installed: Cluster, broker: EmbeddedBroker
) -> None:
    """Each of these lives is in a namespace of its own, all at once."""
    begun = f"{time.time():.0f}"

    def stage(number: int) -> Stage:
        name = f"answering-{begun}-{number}"
        installed.kubectl("create", "namespace", name)
        return Stage(installed, broker, name, f"answered-{number}")

    async def whole(stage: Stage) -> tuple[int, dict[str, Any]]:
        async with stage.played():
            await begin(stage)
            async with stage.operator(policy=POLICY) as mortal:
                await live(stage, mortal)
                writes = mortal.done
            return writes, await finish(stage)

    async def broken(stage: Stage, writes: int) -> dict[str, Any]:
        async with stage.played():
            await begin(stage)
            async with stage.operator(Mortal(writes), policy=POLICY) as mortal:
                await live(stage, mortal)
            return await finish(stage)

    async def main() -> None:
        writes, wanted = await whole(stage(0))
        assert wanted["stated"] == [(f.PlanApproved, "ann", PLAN)]
        assert writes >= 3, "owner, word and status of the answer"
        stages = [stage(number) for number in range(1, writes + 1)]
        found = await asyncio.gather(*(broken(each, at) for at, each in enumerate(stages, 1)))
        assert [each for each in found if each != wanted] == []

    asyncio.run(main())
