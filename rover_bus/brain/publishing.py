"""From the Brain's records to what leaves it: plans, verdicts, stragglers, incidents, forecasts.

A pure function of the record (P18).
"""

from __future__ import annotations

from typing import Any

from rover_bus.brain.log import (
    BrainRuleSwitched,
    ChangeJudged,
    Foreseen,
    HotServerFound,
    IncidentNoted,
    MembersSeen,
    Proposed,
    StragglerNoted,
    Withheld,
)
from rover_bus.events import facts
from rover_bus.events.facts import BrainFact, JobFact
from rover_bus.events.log import Record
from rover_bus.events.outbox import FactOut, Outgoing

FACTS_A_RECORD = 4
# Reasons that pass by themselves: not worth a record a window.
PASSING = frozenset({"change_in_flight", "cooldown", "not_enough_samples", "keep", "declined", "paused"})
KINDS = (
    "plan.proposed",
    "plan.withheld",
    "plan.measured",
    "plan.kept",
    "plan.rolled_back",
    "straggler.found",
    "straggler.recovered",
    "incident.opened",
    "incident.closed",
    "job.forecast",
    "job.stop_requested",
    "slots.move_requested",
    "members.unheard",
    "rule.switched_off",
    "rule.switched_on",
)


def outgoing(record: Record, position: tuple[int, int], term: int) -> list[Outgoing]:
    """Return the facts that a record makes, each with its place in the Brain's log."""
    made: list[Outgoing] = []
    for number, fact in enumerate(_facts(record)):
        place = (position[0], position[1] * FACTS_A_RECORD + number)
        cause = getattr(record, "cause", "")
        fact = fact.replace(cause=cause, by="brain")
        if "brain_position" in fact.__struct_fields__:
            fact = fact.replace(brain_position=place)
        if isinstance(fact, facts.PlanProposed | BrainFact):
            fact = fact.replace(brain_term=term)
        made.append(FactOut(fact, place, term))
    return made


def _facts(record: Record) -> list[JobFact]:
    match record:
        case Proposed(plan=plan):
            return [plan]
        case Withheld(job=job):
            return [
                facts.PlanWithheld(
                    job=job,
                    constant=record.constant,
                    reason=record.detail,
                    wanted=record.wanted,
                    waits_for=record.waits_for,
                )
            ]
        case MembersSeen(job=job, unheard=host) if host:
            return [facts.MembersUnheard(job=job, host=host, stand_in=next(iter(record.masters), None))]
        case ChangeJudged():
            return _verdict(record)
        case StragglerNoted():
            return [_straggler(record)]
        case IncidentNoted():
            return [_incident(record)]
        case HotServerFound(job=job, member=member):
            return [
                facts.SlotsMoveRequested(
                    job=job,
                    source=member.place,
                    hot=True,
                    reason=f"hot: {record.busy:.2f} cores busy, {record.mean:.2f} on average",
                )
            ]
        case Foreseen():
            return _forecast(record)
        case BrainRuleSwitched():
            return [_rule_switched(record, job) for job in ([record.job] if record.job else record.jobs)]
    return []


def _rule_switched(record: BrainRuleSwitched, job: str) -> JobFact:
    if not record.off:
        return facts.RuleSwitchedOn(job=job, rule=f"brain: {record.rule}", release=record.release)
    return facts.RuleSwitchedOff(
        job=job, rule=f"brain: {record.rule}", why=record.why, release=record.release
    )


def _verdict(record: ChangeJudged) -> list[JobFact]:
    figures: dict[str, Any] = {
        "job": record.job,
        "plan": record.plan,
        "before": record.before,
        "after": record.after,
        "predicted": record.predicted,
    }
    measured = facts.PlanMeasured(**figures, windows=record.windows)
    if record.keep:
        return [measured, facts.PlanKept(**figures, constant=record.constant)]
    back = facts.PlanRolledBack(**figures, by_plan=record.plan + 1, constant=record.constant)
    return [measured, back]


def _straggler(record: StragglerNoted) -> JobFact:
    if not record.found:
        return facts.StragglerRecovered(job=record.job, member=record.member, share=record.share)
    return facts.StragglerFound(
        job=record.job,
        member=record.member,
        share=record.share,
        lease_share=record.lease_share,
        rate=record.rate,
        usual=record.usual,
        constant=record.constant,
    )


def _incident(record: IncidentNoted) -> JobFact:
    if not record.opened:
        return facts.IncidentClosed(
            job=record.job,
            incident=record.incident,
            member=record.member,
            used_bytes=record.used_bytes,
            limit_bytes=record.limit_bytes,
        )
    return facts.IncidentOpened(
        job=record.job,
        incident=record.incident,
        member=record.member,
        constant=record.constant,
        used_bytes=record.used_bytes,
        limit_bytes=record.limit_bytes,
        seconds_left=record.seconds_left,
        plan=record.plan,
    )


def _reached(record: Foreseen) -> str:
    wanted = f", {record.target:.4g} was wanted" if record.target else ", and no further step would pay"
    return f"{record.metric} {record.value:.4g}{wanted}"


def _forecast(record: Foreseen) -> list[JobFact]:
    if record.stop:
        return [
            facts.JobStopRequested(
                job=record.job,
                mode="finish",  # whoever named a target wants to know what the model is worth
                reason=_reached(record),
            )
        ]
    return [
        facts.JobForecast(
            job=record.job,
            constant=record.constant,
            eta_s=record.eta_s,
            low_90_s=record.low_90_s,
            high_90_s=record.high_90_s,
            value=record.value,
            target=record.target,
            metric=record.metric,
        )
    ]
