"""A worker is started only after its program was tried here and starts; what does not start is tried again, ever more rarely."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.events.deciding import WakeAt
from rover_bus.events.facts import JobEnded, JobSubmitted, MembersDesired
from rover_bus.events.identity import DesiredMember, Exit, ExitReason, Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.programs import STARTS, ProgramReply, ProgramRequest
from rover_bus.node.decider import Effect, Start, TryProgram, decide
from rover_bus.node.local.trials import Invocation, prepare, read_invocation
from rover_bus.node.members import HistoryLost, HostMembers, Loss, ProgramTried, PublishedLost, evolve
from rover_bus.node.port import Exited, Spawned
from rover_bus.node.programs import AGAIN_FIRST_S, AGAIN_MAX_S

HERE, UID = "h", "u1"
PROGRAM = ProgramRequest(program=["python", "train.py"], directory="/jobs", environment={"A": "1"})
REFUSED = ProgramReply(state="refused", path="/jobs/train.py", problem="no such file")
UNKNOWN = ProgramReply(state="unknown", problem="no answer within 20 s")


def submitted(uid: str = UID) -> JobSubmitted:
    spec = JobSpec(
        name="demo",
        program=PROGRAM.program,
        directory=PROGRAM.directory,
        environment=PROGRAM.environment,
        data=DataSpec(train="x"),
    )
    return JobSubmitted(job="demo", uid=uid, spec=spec)


def member(role: str, index: int, incarnation: int = 1) -> DesiredMember:
    return DesiredMember(member=Member(role, index, incarnation), host=HERE, command=["x"])  # type: ignore[arg-type]


class Host:
    """The decider of one host, carried out as the daemon does; `asks` are the questions that were put."""

    def __init__(self) -> None:
        self.state = HostMembers(HERE, (0, 1))
        self.now_s = 0.0
        self.asks: list[TryProgram] = []
        self.plan = 0

    def want(self, *members: DesiredMember) -> None:
        self.plan += 1
        self.state = evolve(
            self.state, MembersDesired(job="demo", uid=UID, term=1, plan=self.plan, members=list(members))
        )

    def act(self) -> list[str]:
        """Do what is decided until nothing is left; return the members that were started."""
        started: list[str] = []
        while effects := [each for each in self._decide() if not isinstance(each, WakeAt)]:
            for effect in effects:
                self._do(effect, started)
        return started

    def next_wake_s(self) -> float | None:
        return next((each.at_s for each in self._decide() if isinstance(each, WakeAt)), None)

    def _decide(self) -> list[Effect]:
        return decide(self.state, self.now_s)

    def _do(self, effect: Effect, started: list[str]) -> None:
        match effect:
            case Start(incarnation):
                started.append(str(incarnation.member))
                self.state = evolve(self.state, Spawned(incarnation))
            case TryProgram(job, uid):
                self.asks.append(effect)
                self.state = evolve(self.state, ProgramTried(job, uid, for_start=effect.for_start))

    def begin(self) -> None:
        """The first trial ends well, the one for the start begins."""
        self.answer(STARTS)
        assert self.act() == []
        assert self.asks[-1].for_start

    def answer(self, reply: ProgramReply, uid: str = UID) -> None:
        self.state = evolve(self.state, ProgramTried("demo", uid, reply, self.now_s))

    def end(self, member: Member, reason: ExitReason = "killed", ran_s: float = 1.0) -> None:
        self.state = evolve(self.state, Exited("demo", UID, member, Exit(reason=reason), ran_s, self.now_s))

    @property
    def published(self) -> str | None:
        return self.state.jobs["demo"].trial.published


@pytest.fixture
def host() -> Host:
    """A host that heard of a job, and asked at once whether its program starts."""
    made = Host()
    made.state = evolve(made.state, submitted())
    assert made.act() == []
    assert made.asks == [TryProgram("demo", UID, PROGRAM)]
    return made


def test_workers_wait_for_an_answer_to_a_trial_of_their_own_and_start_with_it(host: Host) -> None:
    """A job may have waited for its plan since the first one."""
    host.answer(STARTS)
    host.want(member("worker", 0), member("worker", 1))
    assert host.act() == []
    assert [each.for_start for each in host.asks] == [False, True]
    host.answer(STARTS)
    assert host.act() == ["worker-0.1", "worker-1.1"]


def test_an_answer_that_was_not_asked_for_a_start_is_asked_for_once_more(host: Host) -> None:
    host.want(member("worker", 0))
    assert host.act() == []
    host.answer(STARTS)
    assert host.act() == []
    assert len(host.asks) == 2
    host.answer(STARTS)
    assert host.act() == ["worker-0.1"]


def test_servers_do_not_wait_they_run_no_program_of_the_job(host: Host) -> None:
    host.want(member("ps", 0), member("worker", 0))
    assert host.act() == ["ps-0.1"]


def test_a_refused_program_starts_no_worker_and_is_tried_again_ever_more_rarely(host: Host) -> None:
    host.want(member("worker", 0))
    host.begin()
    waits = []
    for _ in range(10):
        host.answer(REFUSED)
        assert host.act() == []
        again_s = host.next_wake_s()
        assert again_s is not None
        waits.append(again_s - host.now_s)
        host.now_s = again_s
        assert host.act() == []
        assert host.asks[-1].anew
    assert waits[:3] == [AGAIN_FIRST_S, 2 * AGAIN_FIRST_S, 4 * AGAIN_FIRST_S]
    assert waits[-1] == AGAIN_MAX_S
    assert len(host.asks) == 12
    host.answer(STARTS)
    assert (host.act(), host.published) == (["worker-0.1"], "")


def test_the_refusal_is_told_once_as_long_as_it_is_the_same(host: Host) -> None:
    host.answer(REFUSED)
    assert host.published == "/jobs/train.py: no such file"
    host.now_s += AGAIN_MAX_S
    host.act()
    host.answer(UNKNOWN)  # mends nothing, and tells nothing new
    assert host.published == "/jobs/train.py: no such file"
    assert host.act() == []


def test_a_trial_that_came_to_no_end_refuses_nothing(host: Host) -> None:
    host.want(member("worker", 0))
    host.begin()
    host.answer(UNKNOWN)
    assert host.act() == ["worker-0.1"]


def test_before_each_further_start_the_files_are_looked_at_again(host: Host) -> None:
    host.want(member("worker", 0))
    host.begin()
    host.answer(STARTS)
    assert host.act() == ["worker-0.1"]
    assert len(host.asks) == 2
    host.end(Member("worker", 0, 1))
    host.want(member("worker", 0, 2))
    assert host.act() == []
    assert [each.anew for each in host.asks] == [False, False, False]
    host.answer(STARTS)
    assert host.act() == ["worker-0.2"]


def test_an_answer_to_a_start_that_did_not_come_is_none_for_the_next_one(host: Host) -> None:
    host.want(member("worker", 0))
    host.begin()
    host.want()
    host.answer(STARTS)
    assert host.act() == []
    host.now_s += 3600.0
    host.want(member("worker", 0))
    assert host.act() == []
    host.answer(STARTS)
    assert host.act() == ["worker-0.1"]


@pytest.mark.parametrize("reason", ["failed", "crashed", "never_started"])
def test_after_an_early_fault_nothing_remembered_counts(host: Host, reason: ExitReason) -> None:
    host.want(member("worker", 0))
    host.begin()
    host.answer(STARTS)
    host.act()
    host.end(Member("worker", 0, 1), reason)
    host.want(member("worker", 0, 2))
    host.act()
    assert host.asks[-1].anew


def test_an_answer_to_another_run_of_the_job_is_none(host: Host) -> None:
    host.answer(STARTS, uid="u0")
    host.want(member("worker", 0))
    assert host.act() == []
    host.state = evolve(host.state, submitted("u2"))
    host.act()
    host.answer(STARTS)
    assert host.state.jobs["demo"].trial.state == "trying"
    assert [each.uid for each in host.asks] == ["u1", "u2"]


def test_a_job_that_ended_is_not_tried_any_more(host: Host) -> None:
    host.answer(REFUSED)
    host.state = evolve(host.state, JobEnded(job="demo", state="cancelled"))
    host.now_s += AGAIN_MAX_S
    host.act()
    assert len(host.asks) == 1
    assert host.next_wake_s() is None


@pytest.mark.parametrize("loss", [HistoryLost(), PublishedLost()])
def test_after_a_power_cut_of_the_broker_a_refusal_is_asked_and_published_anew(
    host: Host, loss: Loss
) -> None:
    host.answer(REFUSED)
    host.state = evolve(host.state, loss)
    assert host.published is None
    host.act()
    assert len(host.asks) == 2
    host.answer(STARTS)
    assert host.published == ""  # differs from what may be forgotten: it is published that it starts


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train.py --rate 1", Invocation((), "script", "train.py")),
        ("-u -O train.py -m x", Invocation(("-u", "-O"), "script", "train.py")),
        ("-uX dev -W ignore train.py", Invocation(("-uX", "dev", "-W", "ignore"), "script", "train.py")),
        ("-Wignore -Xdev train.py", Invocation(("-Wignore", "-Xdev"), "script", "train.py")),
        ("-Im ads.train --fast", Invocation(("-I",), "module", "ads")),
        ("-mads.train", Invocation((), "module", "ads")),
        ("-uc pass train.py", Invocation(("-u",))),
        ("- train.py", Invocation(())),
        ("-- -odd.py", Invocation((), "script", "-odd.py")),
        (
            "--check-hash-based-pycs never t.py",
            Invocation(("--check-hash-based-pycs", "never"), "script", "t.py"),
        ),
        ("", Invocation(())),
        ("-m", Invocation((), "module", "")),
    ],
)
def test_a_python_command_line_is_read_as_python_reads_it(words: str, found: Invocation) -> None:
    assert read_invocation(words.split()) == found


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "train.py").write_text("raise SystemExit('run')\n")
    (tmp_path / "deep" / "linked.py").symlink_to(tmp_path / "train.py")
    (tmp_path / "package").mkdir()
    (tmp_path / "binary").write_text("#!/bin/sh\n")
    (tmp_path / "binary").chmod(0o700)
    return tmp_path


def look(*program: str, jobs: Path, path: str = "/usr/bin:/bin") -> list[str] | ProgramReply:
    return prepare(ProgramRequest(program=list(program), directory=str(jobs)), {"PATH": path}, "/own/python")


@pytest.mark.parametrize(
    ("program", "path", "problem"),
    [
        ("python trian.py", "trian.py", "no such file"),
        ("python ../train.py", "../train.py", "no such file"),
        ("python package", "package", "it holds no __main__.py"),
        ("./nothing", "./nothing", "no such file"),
        ("./train.py", "./train.py", "it cannot be executed"),
        ("/nowhere/python3.12 train.py", "/nowhere/python3.12", "no such file"),
    ],
)
def test_what_is_not_there_is_refused_by_its_path(jobs: Path, program: str, path: str, problem: str) -> None:
    expected = path if path.startswith("/") else f"{jobs}/{path}"
    assert look(*program.split(), jobs=jobs) == ProgramReply(state="refused", path=expected, problem=problem)


def test_a_program_that_no_path_finds_and_a_directory_that_is_not_there_are_refused(jobs: Path) -> None:
    reply = look("no-such-program", jobs=jobs)
    assert isinstance(reply, ProgramReply)
    assert (reply.path, reply.problem) == ("no-such-program", "no such program on the PATH of this host")
    reply = look("python", "train.py", jobs=jobs / "gone")
    assert isinstance(reply, ProgramReply)
    assert (reply.path, reply.problem) == (str(jobs / "gone"), "no such directory")


def test_a_file_that_workers_read_and_that_is_not_there_is_refused_by_its_path(jobs: Path) -> None:
    def with_data(path: Path) -> object:
        request = ProgramRequest(program=["python", "train.py"], directory=str(jobs), reads=[str(path)])
        return prepare(request, {}, "/own/python")

    there, missing = jobs / "train.py", jobs / "clicks.csv"
    assert not isinstance(with_data(there), ProgramReply)
    problem = "no such file, and workers read it"
    assert with_data(missing) == ProgramReply(state="refused", path=str(missing), problem=problem)


def test_a_program_without_python_needs_its_file_and_nothing_else(jobs: Path) -> None:
    assert look("./binary", jobs=jobs) == []
    assert (
        look("binary", jobs=jobs, path=".:/bin") == []
    )  # a relative place of the PATH begins in the job's directory
    assert look("true", jobs=jobs) == []


def test_the_import_is_tried_by_the_interpreter_with_the_options_and_the_place_of_the_program(
    jobs: Path,
) -> None:
    command = look("python", "-u", "deep/linked.py", "--rate", "1", jobs=jobs)
    assert isinstance(command, list)
    assert command[:3] == ["/own/python", "-u", "-c"]
    assert command[4:] == ["script", str(jobs)]  # Python looks beside the file that a link names
    command = look("python", "-m", "ads.train", jobs=jobs)
    assert isinstance(command, list)
    assert command[1:2] + command[3:] == ["-c", "module", "ads"]
