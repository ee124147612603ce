"""What becomes of a plan, stragglers and incidents in a line each. Called by `narration`; apart because plans have many words."""

from __future__ import annotations

from datetime import UTC, datetime

from rover_bus.cli.views.plans import MEASURED
from rover_bus.events import facts, host_facts
from rover_bus.events.plan_facts import AboutFindings, AboutLifeOfPlan, AboutWords


def narrate_plan(fact: facts.AboutPlans | host_facts.AboutCluster) -> str:
    """Return what happened in one line."""
    if isinstance(fact, AboutLifeOfPlan):
        return _narrate_way(fact)
    if isinstance(fact, AboutFindings):
        return _narrate_findings(fact)
    return _narrate_requests(fact)


def _narrate_way(fact: AboutLifeOfPlan) -> str:
    """What becomes of a plan."""
    match fact:
        case facts.PlanProposed(plan=plan, reason=reason, by=by):
            return f"{by or 'a person'} proposes plan {plan}: {reason}"
        case facts.PlanApplied(plan=plan, workers=workers, servers=servers):
            held = f"{_workers(workers)}, {servers} server{'' if servers == 1 else 's'}"
            return f"plan {plan} is carried out: {held}"
        case facts.PlanRefused(plan=plan, reason=reason):
            return f"plan {plan} refused: {reason}"
        case facts.PlanChecked(plan=plan, outcome=outcome):
            return {
                "passed": f"plan {plan} passes the checks",
                "waits": f"plan {plan} waits for a person: `rover plan approve` or `reject`",
                "observed": f"plan {plan} is only observed",
            }[outcome]
        case facts.PlanWithheld(reason=reason, asked_by=by) if by:
            return f"the Brain refuses what {by} asked for: {reason}"
        case facts.PlanWithheld(constant=constant, reason=reason):
            return f"the Brain leaves the job as it is ({constant}){f': {reason}' if reason else ''}"
        case facts.PlanSettled(plan=plan):
            return f"plan {plan} is live"
        case facts.PlanMeasured(plan=plan):
            return f"plan {plan} measured: {_figures(fact)}"
        case facts.PlanKept(plan=plan, constant=constant):
            kept = "was to be measured, and is" if constant == MEASURED else f"is kept ({constant})"
            return f"plan {plan} {kept}: {_figures(fact)}"
        case facts.PlanRolledBack(plan=plan, by_plan=by_plan, constant=constant):
            return f"plan {plan} is rolled back by plan {by_plan} ({constant}): {_figures(fact)}"


def _narrate_requests(fact: AboutWords | host_facts.AboutCluster) -> str:
    """What people say, and what follows at once."""
    match fact:
        case facts.PlanRequested(by=by):
            return f"{by or 'a person'} asks for {_asked(fact)}"
        case facts.PlanApproved(plan=plan, by=by):
            return f"{by or 'a person'} approves plan {plan}"
        case facts.PlanRejected(plan=plan, by=by, reason=reason):
            return f"{by or 'a person'} rejects plan {plan}{f': {reason}' if reason else ''}"
        case facts.PlanModeSet(mode=mode, by=by):
            return f"{by or 'a person'} sets the mode of plans to {mode}"
        case host_facts.ClusterModeSet(mode=mode, by=by, reason=reason):
            return f"{by or 'a person'} sets the mode of all jobs' plans to {mode}{f': {reason}' if reason else ''}"
        case host_facts.QuotaSet():
            return _narrate_quota(fact)
        case host_facts.FreezeSet() | host_facts.FreezeLifted():
            return _narrate_freeze(fact)
        case facts.JobPauseRequested(by=by, reason=reason, release=release):
            what = "a pause that releases the servers" if release else "a pause"
            return f"{by or 'a person'} asks for {what}{f': {reason}' if reason else ''}"
        case facts.JobResumeRequested(by=by):
            return f"{by or 'a person'} resumes the job"
        case facts.JobPaused(by=by, workers=workers, reason=reason, release=release):
            when = " once a checkpoint is stored" if by else ""
            then = f", and any servers{when}" if release else ""
            return f"paused{f' by {by}' if by else ''}: {_workers(workers)} to leave{then}{f' ({reason})' if reason else ''}"
        case facts.JobResumed(workers=workers):
            return (
                f"resumed with {_workers(workers)}"
                if workers
                else "resumed: it waits for a plan with room for it"
            )


def _narrate_findings(fact: AboutFindings) -> str:
    """What the Brain found in the samples."""
    match fact:
        case facts.StragglerFound(member=member, share=share, lease_share=lease):
            then = f"its leases shrink to {lease:.0%}" if lease < 1.0 else "all others wait for it"
            return f"{member} is slow: {share:.0%} of what is expected; {then}"
        case facts.StragglerRecovered(member=member, share=share):
            return f"{member} keeps up again: {share:.0%} of what is expected"
        case facts.IncidentOpened() | facts.IncidentClosed():
            return _narrate_incident(fact)
        case facts.JobForecast(eta_s=eta_s, constant=constant, low_90_s=low, high_90_s=high):
            if eta_s < 0:
                return f"the target is out of reach by what is known ({constant})"
            return f"the target will be reached in {eta_s:.0f} s ({_until(low)} to {_until(high)})"


def _asked(fact: facts.PlanRequested) -> str:
    servers = f"{fact.servers} server{'' if fact.servers == 1 else 's'}"
    size = " and ".join([_workers(fact.workers)] * bool(fact.workers) + [servers] * bool(fact.servers))
    return f"{size}{' on trial' if fact.trial else ''}{f': {fact.reason}' if fact.reason else ''}"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _figures(fact: facts.PlanMeasured | facts.PlanKept | facts.PlanRolledBack) -> str:
    predicted = f", {fact.predicted:,.0f} predicted" if fact.predicted else ""
    return f"{fact.before:,.0f} -> {fact.after:,.0f} samples/s{predicted}"


def _narrate_incident(fact: facts.IncidentOpened | facts.IncidentClosed) -> str:
    if isinstance(fact, facts.IncidentClosed):
        return f"incident {fact.incident} has ended: {fact.member}"
    left = f"in {fact.seconds_left:.0f} s" if fact.seconds_left >= 0 else "some day"
    return f"{fact.member} would meet its memory limit {left}: {fact.constant} (incident {fact.incident})"


def _until(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 0 else "never"


def _narrate_quota(fact: host_facts.QuotaSet) -> str:
    reason = f": {fact.reason}" if fact.reason else ""
    return f"{fact.by or 'a person'} lets the jobs of tenant {fact.tenant} use {quota_text(fact)}{reason}"


def _narrate_freeze(fact: host_facts.FreezeSet | host_facts.FreezeLifted) -> str:
    who, reason = fact.by or "a person", f": {fact.reason}" if fact.reason else ""
    if isinstance(fact, host_facts.FreezeLifted):
        return f"{who} lifts the freeze {fact.freeze!r}{reason}"
    of = f"the jobs of tenant {fact.tenant}" if fact.tenant else "all jobs"
    return f"{who} freezes {of} {window_text(fact.begins_s, fact.ends_s, fact.repeats_s)} ({fact.freeze!r}){reason}"


def window_text(begins_s: float, ends_s: float, repeats_s: float) -> str:
    """Return a freeze's window in words: `from 2026-12-24 18:00 UTC to 2026-12-27 06:00 UTC, again every 7 days`."""
    begins, ends = (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC") for at in (begins_s, ends_s)
    )
    again = f", again every {counted_days(repeats_s)}" if repeats_s else ""
    return f"from {begins} to {ends}{again}"


def counted_days(seconds: float) -> str:
    """Return `day`, `7 days`."""
    days = seconds / 86_400
    return "day" if days == 1 else f"{days:g} days"


def quota_text(fact: host_facts.QuotaSet) -> str:
    """Return what the jobs of a tenant may use together: `8 cores and 32.0 GiB`."""
    limits = [f"{fact.cores:g} cores"] if fact.cores >= 0 else []
    limits += [f"{fact.memory_bytes / (1 << 30):.1f} GiB"] if fact.memory_bytes >= 0 else []
    return " and ".join(limits) if limits else "as much as there is"
