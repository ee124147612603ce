"""What every platform must do for a daemon (node/port.py), asked of each adapter by one set of scenes.

A test module that is to run them takes all names of this one and has a fixture `adapter`: what builds the platform of a new daemon,
kills a daemon, and translates five programs into what it runs (tests/broker/node and tests/kube, test_platform_contract.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import pytest
from patience import PATIENCE_S

from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.events.programs import ProgramReply, ProgramRequest
from rover_bus.node.port import (
    Adjusted,
    Exited,
    Incarnation,
    Leaving,
    Observation,
    Platform,
    Running,
    Spare,
    SpareGone,
    SpareReady,
    SpareSpawned,
    Spawned,
    StartOrder,
    WorkerLoaded,
)

HOST, JOB, UID = "h1", "demo", "u1"
SOME = Resources(cores=0.5, memory_bytes=1 << 29)
SECRET = "only for worker-0"
O = TypeVar("O")  # noqa: E741


WARM = """
import os, pathlib, time
from rover_bus.client.loaded import tell_loaded
if file := os.environ.get("ROVER_LOADED_FILE"):
    tell_loaded(pathlib.Path(file))
trust = "trusted" if os.environ.get("ROVER_CREDENTIAL") == SECRET else ""
print(f"I am worker {os.environ['ROVER_INDEX']}.{os.environ['ROVER_INCARNATION']}, {trust}", flush=True)
while True:
    time.sleep(600)
"""


def script_of(program: str) -> list[str]:
    """What runs as any of them but `warm`, where there is a shell."""
    script = {
        "polite": "trap 'exit 0' TERM; while :; do sleep 0.05; done",
        "deaf": "trap '' TERM; echo deaf; while :; do sleep 600; done",
        "trusted": """test "$ROVER_CREDENTIAL" = "$(printf 'only for %s' worker-0)\"""",
        "failing": "exit 3",
    }[program]
    return ["sh", "-c", script]


class Adapter(Protocol):
    """One kind of platform, and the machine below it, which outlives its daemons."""

    def attach(self, observe: Callable[[Observation], None]) -> Platform:
        """Return the platform of a new daemon."""

    def kill_daemon(self, platform: Platform) -> None:
        """The daemon is gone without a word; what it ran runs on."""

    def run(self, main: Awaitable[None]) -> None: ...

    def command(self, program: str) -> list[str]:
        """What runs as `polite`, `deaf` (to leave), `failing` (status 3), `trusted` (0 if it has SECRET) or `warm`."""

    def question(self, starts: bool) -> ProgramRequest: ...

    async def until_deaf(self, run: Incarnation) -> None:
        """Wait until a `deaf` member that runs would not leave."""

    async def knows(self, run: Incarnation) -> str:
        """Wait until a `warm` member, which says what it loaded, knows which one it is; return it, and whether it has SECRET."""

    def kill_spare(self, spare: Spare) -> None: ...

    async def settle(self, platform: Platform) -> None:
        """Wait until what the platform was told is on record: a daemon that is killed before is told it again (`forget`)."""

    makes_spares: bool  # whether members are made ready before the log names them
    measures: bool  # whether it knows what members use
    remembers_loaded: bool  # whether a successor knows at once what workers had loaded
    host: str  # the one whose members these are

    def close(self) -> None:
        """End what the scene left."""


class Seat:
    """A daemon's side of a platform: what it ordered, and what it observed."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.seen: list[Observation] = []
        self.platform = adapter.attach(self.seen.append)

    def start(
        self,
        program: str = "polite",
        *,
        index: int = 0,
        number: int = 1,
        credential: str = "",
        grace_s: float = 600.0,
        spare: int = 0,
    ) -> Incarnation:
        command = self.adapter.command(program)
        desired = DesiredMember(
            member=Member("worker", index, number),
            host=self.adapter.host,
            command=command,
            resources=SOME,
            grace_s=grace_s,
        )
        run = Incarnation(JOB, UID, desired)
        self.platform.start(StartOrder(run, credential, spare))
        return run

    async def loaded(self) -> Incarnation:
        """Start a worker of which spares can be made."""
        if not self.adapter.makes_spares:
            pytest.skip("this platform makes no spares")
        run = self.start("warm")
        loaded = await self.until(WorkerLoaded)
        assert (loaded.key, loaded.uid) == (run.key, UID)
        assert loaded.start_s > 0
        return run

    async def spare(self, template: Incarnation) -> Spare:
        """Make a spare ready for workers like this one."""
        spare = Spare(JOB, UID, 1, template.desired)
        self.platform.prepare(spare)
        await self.until(SpareReady)
        return spare

    def of(self, kind: type[O]) -> list[O]:
        return [each for each in self.seen if isinstance(each, kind)]

    async def until(self, kind: type[O]) -> O:
        """Wait until such an observation came; fail with what came instead."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while not self.of(kind):
            assert loop.time() < deadline_s, f"no {kind.__name__} among {self.seen}"
            await asyncio.sleep(0.01)
        return self.of(kind)[0]

    async def end(self, run: Incarnation) -> Exited:
        self.platform.stop(run, hurried=True)
        return await self.until(Exited)

    async def successor(self) -> Seat:
        """The daemon is killed, and another takes over what it left."""
        await self.adapter.settle(self.platform)
        self.adapter.kill_daemon(self.platform)
        heir = Seat(self.adapter)
        await heir.platform.adopt()
        return heir


Scene = Callable[[Seat], Awaitable[None]]


@pytest.fixture
def play(adapter: Adapter) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        async def main() -> None:
            await scene(Seat(adapter))

        adapter.run(main())

    return run


def test_an_adapter_has_all_that_the_port_asks(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        asked = [name for name in vars(Platform) if not name.startswith("_")]
        assert [name for name in asked if not hasattr(seat.platform, name)] == []

    play(scene)


def test_a_start_is_observed_as_spawned_then_running(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        running = await seat.until(Running)
        assert seat.seen == [Spawned(run), running]
        assert (running.key, running.adopted) == (run.key, False)
        await seat.end(run)

    play(scene)


@pytest.mark.parametrize("number", [1, 2])
def test_an_order_for_a_member_that_runs_changes_nothing(play: Callable[[Scene], None], number: int) -> None:
    """Neither the same incarnation nor the next one: the former is not proven dead."""

    async def scene(seat: Seat) -> None:
        run = seat.start()
        seat.start(number=number)
        await seat.until(Running)
        seat.start(number=number)
        await seat.end(run)
        assert [type(each) for each in seat.seen] == [Spawned, Running, Leaving, Exited]
        assert seat.of(Spawned) == [Spawned(run)]

    play(scene)


def test_a_successor_is_started_once_the_former_is_proven_dead_and_not_when_it_is_asked_to_leave(
    play: Callable[[Scene], None],
) -> None:
    async def scene(seat: Seat) -> None:
        former = seat.start("deaf")
        await seat.until(Running)
        await seat.adapter.until_deaf(former)
        seat.platform.stop(former)
        seat.start(number=2)
        await asyncio.sleep(0.1)
        assert seat.of(Spawned) == [Spawned(former)]
        await seat.end(former)
        seat.seen.clear()
        next_one = seat.start(number=2)
        await seat.until(Running)
        assert seat.of(Spawned) == [Spawned(next_one)]
        await seat.end(next_one)

    play(scene)


def test_a_stop_is_observed_as_leaving_and_ends_as_drained(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        seat.platform.stop(run)
        ended = await seat.until(Exited)
        assert (ended.job, ended.uid, ended.member) == (JOB, UID, run.member)
        assert (ended.exit.reason, ended.reported) == ("drained", False)
        assert seat.of(Leaving) == [Leaving(run.key)]

    play(scene)


@pytest.mark.parametrize(("grace_s", "hurried"), [(0.2, False), (600.0, True)])
def test_a_member_that_does_not_leave_is_ended_after_its_time(
    play: Callable[[Scene], None], grace_s: float, hurried: bool
) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start("deaf", grace_s=grace_s)
        await seat.until(Running)
        await seat.adapter.until_deaf(run)
        seat.platform.stop(run, hurried)
        assert (await seat.until(Exited)).exit.reason == "killed"
        assert seat.of(Leaving) == [Leaving(run.key, hurried)]

    play(scene)


def test_a_member_that_fails_ends_with_its_own_status(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        seat.start("failing")
        ended = await seat.until(Exited)
        assert (ended.exit.reason, ended.exit.status) == ("failed", 3)
        assert 0 <= ended.ran_s <= PATIENCE_S, "it is how long the member ran"

    play(scene)


def test_a_capacity_that_stays_is_not_said_to_change(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        before = seat.platform.capacity
        change = asyncio.ensure_future(seat.platform.capacity_changes())
        await asyncio.wait({change}, timeout=0.5)
        assert not change.done() or seat.platform.capacity != before
        change.cancel()

    play(scene)


def test_a_stop_of_one_that_is_gone_is_observed_and_does_nothing(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start("failing")
        await seat.until(Exited)
        seat.seen.clear()
        seat.platform.stop(run)
        await asyncio.sleep(0.1)
        assert seat.seen == [Leaving(run.key)]

    play(scene)


def test_the_next_daemon_adopts_what_runs_and_can_stop_it(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        before = list(seat.seen)
        heir = await seat.successor()
        assert (await heir.until(Running)).adopted
        assert heir.of(Spawned) == [Spawned(run)]
        heir.start()
        assert (await heir.end(run)).member == run.member
        assert len(heir.of(Spawned)) == 1
        assert seat.seen == before, "a daemon that is gone observes nothing"

    play(scene)


def test_an_end_is_adopted_until_its_job_is_forgotten(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        seat.start("failing")
        ended = await seat.until(Exited)
        heir = await seat.successor()
        assert [(each.member, each.exit.reason, each.reported) for each in heir.of(Exited)] == [
            (ended.member, "failed", False)
        ]
        heir.platform.mark_reported(heir.of(Exited)[0])
        third = await heir.successor()
        assert [each.reported for each in third.of(Exited)] == [True]
        third.platform.forget("another")
        third.platform.erase(JOB, "u0")
        assert (await third.successor()).of(Exited) != []

    play(scene)


@pytest.mark.parametrize("how", ["killed", "released"])
def test_an_end_after_the_daemon_is_gone_is_observed_by_the_next_one_alone(
    play: Callable[[Scene], None], how: str
) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        seat.platform.stop(run)
        await seat.adapter.settle(seat.platform)
        before = list(seat.seen)
        if how == "killed":
            seat.adapter.kill_daemon(seat.platform)
        else:
            seat.platform.release()
        await asyncio.sleep(0.5)
        heir = Seat(seat.adapter)
        await heir.platform.adopt()
        assert (await heir.until(Exited)).member == run.member
        await asyncio.sleep(0.1)
        assert len(heir.of(Exited)) == 1
        assert seat.seen == before

    play(scene)


@pytest.mark.parametrize("how", ["forget", "erase"])
def test_nothing_is_adopted_of_a_job_that_was_forgotten_or_erased(
    play: Callable[[Scene], None], how: str
) -> None:
    async def scene(seat: Seat) -> None:
        seat.start("failing")
        await seat.until(Exited)
        if how == "forget":
            seat.platform.forget(JOB)
        else:
            seat.platform.erase(JOB, UID)
        assert (await seat.successor()).seen == []

    play(scene)


def test_other_resources_are_observed_and_outlive_the_daemon(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        more = Resources(cores=1.0, memory_bytes=1 << 30)
        cpus = dict.fromkeys(seat.platform.cpus[:1], 1.0)
        seat.platform.adjust(run, more, cpus)
        await seat.until(Adjusted)
        assert seat.of(Adjusted) == [Adjusted(run.key, more, cpus)]
        heir = await seat.successor()
        await heir.until(Running)
        (adopted,) = heir.of(Spawned)
        assert (adopted.incarnation.desired.resources, adopted.incarnation.cpus) == (more, cpus)
        await heir.end(run)

    play(scene)


def test_whether_a_program_starts_is_answered_once_and_runs_nothing(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        for starts in (True, False):
            answers, answered = list[ProgramReply](), asyncio.Event()

            def answer(
                reply: ProgramReply, answers: list[ProgramReply] = answers, answered: asyncio.Event = answered
            ) -> None:
                answers.append(reply)
                answered.set()

            seat.platform.try_program(seat.adapter.question(starts), answer)
            assert answers == [], "the answer comes later"
            await asyncio.wait_for(answered.wait(), PATIENCE_S)
            await asyncio.sleep(0.1)
            assert [each.state for each in answers] == ["starts" if starts else "refused"]
            assert bool(answers[0].problem) != starts
        assert seat.seen == []

    play(scene)


def test_a_measure_is_of_the_time_since_the_one_before_and_names_who_runs(
    play: Callable[[Scene], None],
) -> None:
    async def scene(seat: Seat) -> None:
        assert await seat.platform.measure(HOST) is None
        run = seat.start()
        await seat.until(Running)
        profile = await seat.platform.measure(HOST)
        if profile is None and not seat.adapter.measures:
            pytest.skip("this platform does not know what members use")
        assert profile is not None
        assert (profile.host, profile.cores) == (HOST, seat.platform.capacity.cores)
        assert [(each.job, each.member) for each in profile.processes] == [(JOB, run.member)]
        await seat.end(run)
        profile = await seat.platform.measure(HOST)
        assert profile is not None
        assert profile.processes == []

    play(scene)


def test_a_credential_reaches_its_member_and_is_observed_by_no_daemon(
    play: Callable[[Scene], None],
) -> None:
    async def scene(seat: Seat) -> None:
        seat.start("trusted", credential=SECRET)
        assert (await seat.until(Exited)).exit.reason == "completed"
        assert SECRET not in repr(seat.seen + (await seat.successor()).seen)

    play(scene)


def test_a_member_without_a_credential_has_none(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        seat.start("trusted")
        assert (await seat.until(Exited)).exit.reason == "failed"

    play(scene)


def test_after_its_release_a_platform_observes_nothing_and_its_members_run_on(
    play: Callable[[Scene], None],
) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        before = list(seat.seen)
        seat.platform.release()
        heir = Seat(seat.adapter)
        await heir.platform.adopt()
        await heir.until(Running)
        await heir.end(run)
        assert seat.seen == before

    play(scene)


# -- spares: what is ready before the log names it -----------------------------------------------------------------------


def test_a_spare_is_ready_before_any_admission_and_is_no_member(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        template = await seat.loaded()
        spare = await seat.spare(template)
        assert [each.spare for each in seat.of(SpareSpawned)] == [spare]
        assert seat.of(SpareReady) == [SpareReady(spare.key)]
        if seat.adapter.measures:
            await seat.platform.measure(HOST)
            profile = await seat.platform.measure(HOST)
            assert profile is not None
            assert [each.member for each in profile.processes] == [template.member]
        known = [WorkerLoaded] if seat.adapter.remembers_loaded else []
        assert [type(each) for each in (await seat.successor()).seen] == [Spawned, Running, *known]

    play(scene)


def test_a_spare_becomes_the_member_of_an_order_with_its_credential(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        template = await seat.loaded()
        spare = await seat.spare(template)
        seat.seen.clear()
        run = seat.start("warm", index=1, number=7, credential=SECRET, spare=spare.number)
        running = await seat.until(Running)
        gone, spawned, _ = seat.seen
        assert isinstance(gone, SpareGone)
        assert (gone.key, gone.how) == (spare.key, "used")
        assert spawned == Spawned(run)
        assert (running.key, running.warm, running.adopted) == (run.key, True, False)
        assert await seat.adapter.knows(run) == "worker 1.7, trusted"
        assert SECRET not in repr(seat.seen)
        heir = await seat.successor()
        assert Spawned(run) in heir.of(Spawned)
        heir.platform.stop(run)
        assert (await heir.until(Exited)).member == run.member

    play(scene)


@pytest.mark.parametrize("how", ["dropped", "killed", "of another daemon"])
def test_an_order_that_names_a_spare_that_is_gone_is_a_cold_start(
    play: Callable[[Scene], None], how: str
) -> None:
    async def scene(seat: Seat) -> None:
        template = await seat.loaded()
        spare = await seat.spare(template)
        if how == "of another daemon":
            seat = await seat.successor()
            await seat.until(Running)
        else:
            if how == "dropped":
                seat.platform.drop(spare)
            else:
                seat.adapter.kill_spare(spare)
            gone = await seat.until(SpareGone)
            assert (gone.key, gone.how) == (spare.key, "dropped" if how == "dropped" else "ended")
            seat.platform.drop(spare)
        seat.seen.clear()
        run = seat.start("polite", index=1, spare=spare.number)
        running = await seat.until(Running)
        assert (running.key, running.warm) == (run.key, False)
        assert seat.of(SpareGone) == []

    play(scene)


def test_a_spare_of_a_program_of_which_no_worker_said_what_it_loaded_is_gone_at_once(
    play: Callable[[Scene], None],
) -> None:
    async def scene(seat: Seat) -> None:
        run = seat.start()
        await seat.until(Running)
        seat.platform.prepare(Spare(JOB, UID, 1, run.desired))
        assert (await seat.until(SpareGone)).how == "ended"
        assert seat.of(SpareReady) == []

    play(scene)


def test_no_spare_is_made_of_a_job_that_was_forgotten(play: Callable[[Scene], None]) -> None:
    async def scene(seat: Seat) -> None:
        template = await seat.loaded()
        await seat.end(template)
        seat.platform.forget(JOB)
        seat.platform.prepare(Spare(JOB, UID, 1, template.desired))
        assert (await seat.until(SpareGone)).how == "ended"
        assert seat.of(SpareReady) == []

    play(scene)
