"""Rounds of jobs, each carried out in as many inputs as it needs: a round of thousands must not hold up what the Brain hears.

Fed by the decider at each look, and again while a round is unfinished; yields what `settling` makes of its answers. Three
stages: each job is considered (its model, its front), all choose together (`choosing`), the answers are carried out, shrinks
first. What is considered is made anew by a successor; which answers are still to be carried out is part of the state
(`RoundBegun`, `RoundAdvanced`), and a job that changed meanwhile is left to the next round. docs/design/0048.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from rover_bus.brain.choosing import Answers, Chosen, OpenSize, choosing_among, consider, in_order, in_words
from rover_bus.brain.decisions.pieces import Pieces
from rover_bus.brain.log import RoundAdvanced, RoundBegun
from rover_bus.brain.settling import make_room, seat_masters, settle, withhold
from rover_bus.brain.stalled import is_offered
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.starting import StartOffer, offer_start
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import CapacityLeft, Wish
from rover_bus.events.log import Record

Steps = Generator[Record, None, None]
Guard = Callable[[str, Steps, str], Steps]  # runs a rule apart from the others, for one job or "" for all

EVERY_S = 30.0  # all jobs are sized together at least so often
# The work of one input, in units of about a millisecond of a slow core: what is decided by count is decided alike in every replay.
PIECE, LOOKED, CARRIED_OUT = 80.0, 0.15, 4.0
LISTED, ORDERED = (
    0.002,
    0.006,
)  # of each job of the cluster, as a round begins; of each answer, before the first is carried out
MOST_WAITING = (
    64  # jobs that wait are offered at each look up to so many; more of them only in rounds of all jobs
)

Answer = Chosen | Wish | CapacityLeft
Snapshot = tuple[object, ...]


@dataclass
class OpenRound:
    """One round under way. `waiting`: jobs without a plan, which are offered a start; `seen`: each job as it was considered."""

    turns: deque[str]
    waiting: deque[str]
    answers: Answers = field(default_factory=dict)
    opened: dict[str, OpenSize] = field(default_factory=dict)
    starts: dict[str, StartOffer] = field(default_factory=dict)
    seen: dict[str, Snapshot] = field(default_factory=dict)
    choosing: Pieces[Answers] | None = None  # the choice under way
    listed: float = 0.0  # what its beginning took, of the input that begins it
    spent: float = 0.0  # by the input that goes on with it
    left: deque[tuple[str, Answer]] | None = None  # answers to carry out, once all have chosen
    in_state: bool = False  # the log knows what is left
    whole: bool = False  # it is of all jobs

    def forget(self, name: str) -> None:
        for part in (self.answers, self.opened, self.starts):
            part.pop(name, None)


class Rounds:
    """The rounds of one Brain: when they begin, and how far the one under way has come."""

    def __init__(self) -> None:
        self.due = True  # something happened to the cluster: all jobs are sized together at the next look
        self.finished = 0  # rounds of all jobs
        self.wall_s = 0.0  # Unix time of the last look, 0: no clock was asked
        self._at_s = float("-inf")
        self._fitted = 0
        self._open: OpenRound | None = None
        self._late: dict[str, None] = {}  # whose turn came while a round was under way

    @property
    def unfinished(self) -> bool:
        """Whether a round is under way: it goes on with the next input."""
        return self._open is not None

    @property
    def under_way(self) -> bool:
        """Whether the round under way is one of all jobs."""
        return self._open is not None and self._open.whole

    def look(
        self, turns: Iterable[str], state: BrainState, models: StandingModels, guard: Guard, now: float
    ) -> Steps:
        """Size the jobs whose window closed, or all of them, when something happened to the cluster or none was held for long."""
        self._late.update(dict.fromkeys(turns))
        if self._open is None:
            all_jobs = self.due or now - self._at_s >= EVERY_S
            if all_jobs:
                self.due, self._at_s = False, now
            self._open = self._begin(state, all_jobs)
        yield from self.go_on(state, models, guard)

    def _begin(self, state: BrainState, all_jobs: bool) -> OpenRound:
        if state.round_left:  # a former Brain chose and did not come to these
            turns = [name for name in state.round_left if name in state.jobs]
            self.due = True
        elif all_jobs:
            turns = list(state.jobs)
        else:
            turns = [name for name in self._late if name in state.jobs]
        self._late = {}
        waiting = self._waiting(state)
        crowded = not all_jobs and len(waiting) > MOST_WAITING
        if crowded or not state.hosts or not state.timeline:
            waiting = []
        running = (name for name in turns if state.jobs[name].held is not None)
        left = bool(state.round_left)
        whole = all_jobs and bool(turns or waiting)
        listed = LISTED * len(state.jobs)
        return OpenRound(deque(running), deque(waiting), in_state=left, whole=whole, listed=listed)

    def go_on(self, state: BrainState, models: StandingModels, guard: Guard) -> Steps:
        """Carry on with the round under way, for one input."""
        if (round_ := self._open) is None:
            return
        spent = yield from self._consider(round_, state, models, guard)
        if round_.turns or round_.waiting:
            return
        if round_.left is None:
            round_.spent = spent
            yield from guard("sizes", self._choose(round_, state, models, PIECE), "")
            if round_.choosing is None:
                round_.left = deque()  # the rule is switched off
            if round_.left is None:
                return
            spent = round_.spent
        yield from self._carry_out(round_, state, models, guard, spent)
        if round_.left or round_.starts:
            return
        self._open = None
        self.finished += round_.whole
        if models.fitted != self._fitted:
            self.due, self._fitted = True, models.fitted

    def start_in_free_room(self, state: BrainState, models: StandingModels, guard: Guard) -> Steps:
        """Begin what waits as far as there is room now: no running job is touched before the next look."""
        waiting = self._waiting(state)
        if self._open is not None or not 0 < len(waiting) <= MOST_WAITING:
            return
        if not state.hosts or not state.timeline:
            return
        round_ = OpenRound(deque(), deque(waiting))
        while round_.waiting:
            yield from self._offer(round_, state, models, guard)
        yield from guard("sizes", self._choose(round_, state, models, float("inf")), "")
        for name, answer in round_.left or ():
            yield from guard("sizes", self._answer(round_, name, answer, state, models), "")

    def _waiting(self, state: BrainState) -> list[str]:
        """The jobs that wait and are offered a start now."""
        return [name for name in totals_of(state).waiting if is_offered(state.jobs[name], self.wall_s)]

    # -- the stages ----------------------------------------------------------------------------------------------------

    def _consider(
        self, round_: OpenRound, state: BrainState, models: StandingModels, guard: Guard
    ) -> Generator[Record, None, float]:
        """Consider jobs until the input's work is done; returns how much that was."""
        spent, round_.listed = round_.listed, 0.0
        while spent < PIECE and (round_.waiting or round_.turns):
            before = models.spent
            if round_.waiting:
                yield from self._offer(round_, state, models, guard)
            else:
                name = round_.turns.popleft()
                if name in state.jobs:
                    yield from guard("sizes", self._look_at(round_, name, state, models), "")
            spent += LOOKED + models.spent - before
        return spent

    def _offer(self, round_: OpenRound, state: BrainState, models: StandingModels, guard: Guard) -> Steps:
        name = round_.waiting.popleft()
        if name in totals_of(state).waiting:
            yield from guard("start", _offer_start(round_, name, state, models), name)

    def _look_at(self, round_: OpenRound, name: str, state: BrainState, models: StandingModels) -> Steps:
        round_.seen[name] = _snapshot(state.jobs[name])
        considered = consider(name, state, state.quotas, models)
        if isinstance(considered, OpenSize):
            round_.opened[name] = considered
        else:
            round_.answers[name] = considered
        yield from ()

    def _choose(self, round_: OpenRound, state: BrainState, models: StandingModels, most: float) -> Steps:
        """Choose until all have chosen, or the input has done so much."""
        if round_.choosing is None:
            for name, seen in round_.seen.items():
                if name not in state.jobs or _snapshot(state.jobs[name]) != seen:
                    round_.forget(name)
                    self._late[name] = None
            round_.choosing = choosing_among(round_.opened, round_.starts, state, models)
        try:
            while round_.spent < most:
                round_.spent += next(round_.choosing)
        except StopIteration as chosen:
            answers = round_.answers | chosen.value
            there = {name: answer for name, answer in answers.items() if name in state.jobs}
            round_.left = deque(in_order(there, state))
            round_.spent += ORDERED * len(there)
        yield from ()

    def _carry_out(
        self, round_: OpenRound, state: BrainState, models: StandingModels, guard: Guard, spent: float
    ) -> Steps:
        """Carry answers out until the input's work is done, then make room for those that the round began nothing for."""
        done, left = 0, round_.left
        assert left is not None
        while left and spent < PIECE:
            name, answer = left.popleft()
            before, done = models.spent, done + 1
            yield from guard("sizes", self._answer(round_, name, answer, state, models), "")
            spent += models.spent - before
            spent += LOOKED if isinstance(answer, CapacityLeft) else CARRIED_OUT
        while not left and round_.starts and spent < PIECE:
            name = next(iter(round_.starts))
            del round_.starts[name]
            spent += CARRIED_OUT
            if name in state.jobs and _snapshot(state.jobs[name]) == round_.seen.get(name):
                yield from guard("start", make_room(name, state.jobs[name], state, models), name)
        if left and not round_.in_state:
            round_.in_state = True
            yield RoundBegun(jobs=[name for name, _ in left], cause="round")
        elif round_.in_state and (done or not left):
            yield RoundAdvanced(done=done if left else len(state.round_left), cause="round")

    def _answer(
        self,
        round_: OpenRound,
        name: str,
        answer: Answer,
        state: BrainState,
        models: StandingModels,
    ) -> Steps:
        """Carry out what a round chose for a job; in `starts` stay the jobs that it gave nothing."""
        known = state.jobs.get(name)
        if known is None or _snapshot(known) != round_.seen.get(name):
            round_.starts.pop(name, None)
            self._late[name] = None
            return
        said = in_words(known, answer)
        if isinstance(said, Wish):
            round_.starts.pop(name, None)
            yield from settle(name, known, state, models, said)
        elif name not in round_.starts:
            yield from withhold(name, known, said)


def _offer_start(round_: OpenRound, name: str, state: BrainState, models: StandingModels) -> Steps:
    known = state.jobs[name]
    round_.seen[name] = _snapshot(known)
    if known.stopping:
        yield seat_masters(name, known, state)
    else:
        round_.starts[name] = offer_start(name, known, state, state.quotas, models)


def _snapshot(job: KnownJob) -> Snapshot:
    """What a job's answer rests on: another run, plan, member set or size makes it void, and so does a person's word."""
    change = (job.change.waits, job.change.settled) if job.change is not None else None
    return job.uid, job.plan, job.members_plan, job.held, job.paused, job.stopping, change
