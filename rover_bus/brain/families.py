"""A family learns once: what runs of one family have shown, ended ones and those beside it, is known to each of its runs.

Fed by jobs' tried sizes (`predicting`), kept by `evolution` when a run ends, feeds `standing_models`. Apart, because a family
outlives its jobs. Runs differ in pace by some percent: hence samples name their run, and `predicting.fit_family` levels them.
"""

from __future__ import annotations

from rover_bus.brain.history import traits_of
from rover_bus.brain.predicting import samples_of
from rover_bus.brain.state import BrainState, KnownJob, TimeScales
from rover_bus.events.job import JobSpec

MOST_SAMPLES = 24  # of a family, the newest
MOST_FAMILIES = 200  # the latest that ended a run


def family_of(spec: JobSpec) -> str:
    """Return what runs of a job have in common: its family, its data set and how its workers train."""
    traits = traits_of(spec)
    training = spec.workers.training if spec.has_servers else "all-reduce"
    return f"{traits.family} on {traits.dataset}, {training}"


def remember(state: BrainState, job: KnownJob) -> None:
    """Keep what a run that ends has shown."""
    shown = samples_of(job)
    if not shown:
        return
    family = family_of(job.spec)
    kept = [*state.families.pop(family, []), *shown][-MOST_SAMPLES:]
    state.families[family] = kept
    for oldest in list(state.families)[:-MOST_FAMILIES]:
        del state.families[oldest]


def usual_scales(state: BrainState, spec: JobSpec) -> TimeScales:
    """Return what starts and changes took in a job's family, as far as measured there, else in this cluster."""
    family, cluster = (state.scales.get(name, TimeScales()) for name in (family_of(spec), ""))
    return _with(cluster, family)


def note_scales(state: BrainState, job: KnownJob) -> None:
    """Keep what starts and changes of a job took: for the next run of its family, and for what nothing is known of."""
    for name in (family_of(job.spec), ""):
        state.scales[name] = _with(state.scales.pop(name, TimeScales()), job.scales)
    for oldest in list(state.scales)[: -MOST_FAMILIES - 1]:
        del state.scales[oldest]


def _with(former: TimeScales, now: TimeScales) -> TimeScales:
    """What was measured now, in place of what was measured before."""
    return TimeScales(
        former.start_s if now.start_s is None else now.start_s,
        former.change_s if now.change_s is None else now.change_s,
    )


def usual_use(state: BrainState, spec: JobSpec) -> dict[str, float]:
    """Return the cores that a member without a limit is counted with before it is measured, by role: what the last run used."""
    traits = traits_of(spec)
    for past in reversed(state.past):
        if (past.traits.family, past.traits.dataset) == (traits.family, traits.dataset):
            roles = (
                ("worker", spec.workers, past.final.worker_cores),
                ("ps", spec.servers, past.final.server_cores),
            )
            return {name: cores for name, role, cores in roles if not role.cores}
    return {}
