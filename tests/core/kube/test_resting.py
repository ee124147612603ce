"""Objects at rest are passed over: what is decided is what it would be if each were looked at, after any history, at any time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from object_script import BEGUN_S, SPEC

from rover_bus.events import facts
from rover_bus.events.deciding import Turn
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.kube import objects
from rover_bus.kube.kinds import Metadata, Ref
from rover_bus.kube.known_objects import Acted, Acting, Happening, Objects, ObjectSeen, TenantsKnown
from rover_bus.kube.object import job_of
from rover_bus.kube.objects import ForObject, ObjectsDecider, WriteStatus, decide
from rover_bus.kube.roverjobs import FINALIZER, RoverJob
from rover_bus.kube.runs import FactOfJob, HeardFact

NAMES = ("a", "b", "c")
REFS = [Ref("team", name) for name in NAMES]


def uid(name: str) -> str:
    return f"00000000-0000-4000-8000-00000000000{name}"


def seen(name: str, version: int, **spec: object) -> ObjectSeen:
    about = Metadata(
        name=name,
        namespace="team",
        uid=uid(name),
        generation=1,
        resource_version=str(version),
        finalizers=[FINALIZER],
    )
    return ObjectSeen(Ref("team", name), RoverJob(metadata=about, spec={**SPEC, **spec}))


def submitted(name: str) -> facts.JobSubmitted:
    job = job_of({"metadata": {"name": name}, "spec": SPEC})
    return facts.JobSubmitted(job=name, uid=uid(name).replace("-", "")[:16], spec=job, by="kubernetes/team")


def desired(name: str, plan: int) -> facts.MembersDesired:
    member = DesiredMember(member=Member("worker", plan, 1), host="h", command=["x"])
    return facts.MembersDesired(job=name, term=1, plan=plan, members=[member], position=(plan, 0))


def ended(name: str) -> facts.JobEnded:
    return facts.JobEnded(job=name, state="completed", reason="", detail="", summary={})


names = st.sampled_from(NAMES)
steps = st.one_of(
    st.builds(lambda name, hold: ("seen", name, hold), names, st.booleans()),
    st.builds(lambda name: ("gone", name, 0), names),
    st.builds(lambda name: ("submitted", name, 0), names),
    st.builds(lambda name: ("desired", name, 0), names),
    st.builds(lambda name: ("ended", name, 0), names),
    st.builds(lambda name, late: ("acted", name, late), names, st.integers(0, 2)),
    st.builds(lambda known: ("tenants", "", known), st.booleans()),
    st.builds(lambda seconds: ("wait", "", seconds), st.sampled_from([0.1, 1.0, 6.0, 40.0])),
)


class Told:
    """What happens, numbered as a broker and an API server number it."""

    def __init__(self) -> None:
        self.now_s, self.count = BEGUN_S, 0

    def happening(self, what: str, name: str, more: float) -> Happening | None:
        self.count += 1
        ref = Ref("team", name)
        match what:
            case "seen":
                return seen(name, self.count, suspend=bool(more), activeDeadlineSeconds=30)
            case "gone":
                return ObjectSeen(ref, None)
            case "submitted":
                return self.heard(submitted(name))
            case "desired":
                return self.heard(desired(name, self.count))
            case "ended":
                return self.heard(ended(name))
            case "acted":
                return Acted(ref, self.now_s, self.count + int(more) - 1, self.count + int(more) - 1)
            case "tenants":
                return TenantsKnown(frozenset({"team"} if more else ()))
            case _:
                self.now_s += more
                return None

    def heard(self, fact: FactOfJob) -> HeardFact:
        return HeardFact(fact, self.count, int(1000 * self.now_s))


@given(st.lists(steps, max_size=40), st.booleans())
def test_what_rests_is_what_has_nothing_to_do(
    history: list[tuple[str, str, float]], carried_out: bool
) -> None:
    told, decider = Told(), ObjectsDecider(Objects())
    for step in history:
        if (happening := told.happening(*step)) is not None:
            decider.decide(happening, told.now_s)
        effects = decider.decide(Turn(), told.now_s).effects
        assert list(effects) == decide(decider.state, told.now_s)
        for each in effects if carried_out else ():
            if isinstance(each, ForObject):
                decider.decide(Acting(each.ref), told.now_s)


def test_a_fact_of_one_job_has_the_others_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Ref] = []
    look = objects._on

    def noted(state: Objects, ref: Ref, *more: object) -> objects.Steps:
        asked.append(ref)
        return look(state, ref, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "_on", noted)
    told, decider = Told(), ObjectsDecider(Objects())
    for name in NAMES:
        decider.decide(told.happening("seen", name, 0), told.now_s)
        decider.decide(told.heard(submitted(name)), told.now_s)
        written(decider, told)
    told.now_s += 1.0
    decider.decide(Turn(), told.now_s)
    asked.clear()
    decider.decide(Turn(), told.now_s)
    assert asked == []
    decider.decide(told.heard(desired("b", 1)), told.now_s)
    decider.decide(Turn(), told.now_s)
    assert asked == [REFS[1]]


def written(decider: ObjectsDecider, told: Told) -> None:
    """Carry out the statuses that are due, as an API server would."""
    for each in decider.decide(Turn(), told.now_s).effects:
        if not isinstance(each, ForObject):
            continue
        for act in each.acts:
            if isinstance(act, WriteStatus):
                told.count += 1
                about = msgspec.structs.replace(act.object.metadata, resource_version=str(told.count))
                made = RoverJob(metadata=about, spec=act.object.spec, status=dict(act.patch))
                decider.decide(ObjectSeen(each.ref, made), told.now_s)
