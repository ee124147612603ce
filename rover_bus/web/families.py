"""Every metric as data: name, kind, labels, what it says. Feeds rendering.py, `cli/figures.py` by name, and docs/metrics.md.

Names have the prefix `rover_` and base units (seconds, bytes, cores, samples). A label is a job, tenant, host, role or a constant:
nothing that grows with time. Counters are counted from facts, so they go on where they were when the process that serves them
starts again; what an operator counts of itself begins with its lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. `labels`: their names; `about`: one sentence. A counter's name ends with `_total`. A histogram has the one label
    `le`: its figures are how many were at most each bound, and `sum`.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str


def _gauge(name: str, about: str, *labels: str) -> MetricFamily:
    return MetricFamily(f"rover_{name}", "gauge", labels, about)


def _counter(name: str, about: str, *labels: str) -> MetricFamily:
    return MetricFamily(f"rover_{name}_total", "counter", labels, about)


def _histogram(name: str, about: str) -> MetricFamily:
    return MetricFamily(f"rover_{name}", "histogram", ("le",), about)


FAMILIES: tuple[MetricFamily, ...] = (
    # the stack
    _gauge("build_info", "1, with the release that serves this.", "release"),
    _gauge("bus_connected", "Whether the broker answers the process that serves this."),
    _gauge("brain_leads", "Whether a Brain leads: without one jobs keep their sizes, and new ones wait."),
    _gauge("facts_sequence", "Sequence of the newest fact that these figures rest on."),
    _gauge(
        "newest_fact_timestamp_seconds",
        "When the newest fact was stored, in Unix seconds; 0 before the first.",
    ),
    _counter(
        "facts_refused",
        "Stored facts that no reader believes: foreign, damaged, or not what their subject says.",
    ),
    _gauge("stream_bytes", "Bytes that a stream holds.", "stream"),
    _gauge("store_bytes", "Bytes that all streams of a stack and its tenants hold on the broker's disk."),
    _gauge(
        "store_limit_bytes",
        "Bytes that the broker of a stack may store; of one that it does not run itself as `--max-store` says, else 0.",
    ),
    _gauge(
        "tenant_store_bytes",
        "Bytes that a tenant's account stores; `default` is the stack's own account.",
        "tenant",
    ),
    _gauge("tenant_store_limit_bytes", "Bytes that a tenant's account may store; 0 for no limit.", "tenant"),
    _gauge("jobs", "Jobs by state.", "state"),
    _histogram(
        "operator_reaction_seconds",
        "From the receipt of a desired state by the operator that leads to its first request for a pod that this changes.",
    ),
    # hosts
    _gauge("host_up", "Whether a host's daemon is there.", "host"),
    _gauge("host_cores", "Cores that a host has.", "host"),
    _gauge("host_used_cores", "Cores in use on a host, over its last sample.", "host"),
    _gauge("host_memory_bytes", "Memory that a host has.", "host"),
    _gauge("host_used_memory_bytes", "Memory in use on a host.", "host"),
    _gauge("host_slow", "Whether the Brain takes a host for slow.", "host"),
    # jobs
    _gauge("job_state", "1 for the state that a job is in, 0 for the others.", "job", "state"),
    _gauge(
        "job_samples",
        "Samples that a job has to train: records times epochs; of a stream what was assigned so far.",
        "job",
    ),
    _gauge(
        "job_committed_samples",
        "Samples that every server has applied; less after a job went back to a checkpoint.",
        "job",
    ),
    _gauge("job_dead_lettered_samples", "Samples that were given up by name.", "job"),
    _gauge(
        "job_throughput",
        "Goodput in samples a second, as the job's master reports it; 0 while nothing is trained.",
        "job",
    ),
    _gauge(
        "job_predicted_throughput",
        "Samples a second that the Brain predicted for the plan that is carried out; 0 where it predicted nothing.",
        "job",
    ),
    _gauge(
        "job_remaining_seconds",
        "Seconds to the end at the present speed; +Inf while nothing is trained.",
        "job",
    ),
    _gauge("job_epoch", "Epoch that a job is in, from 0 on.", "job"),
    _gauge("job_desired_members", "Members that a job shall have.", "job", "role"),
    _gauge("job_running_members", "Processes of a job that run.", "job", "role"),
    _gauge(
        "job_used_cores",
        "Cores that the members of a role use together, over the last samples of their hosts.",
        "job",
        "role",
    ),
    _gauge("job_used_memory_bytes", "Memory that the members of a role use together.", "job", "role"),
    _gauge(
        "job_worker_time_ratio",
        "Share of the workers' time by what it goes to, over their last samples.",
        "job",
        "activity",
    ),
    _gauge("job_loss", "Loss over the workers' last samples; NaN where the program reports none.", "job"),
    _gauge(
        "job_staleness_batches",
        "Batches of others that were applied between a batch's pull and its push, mean.",
        "job",
    ),
    _counter("job_lost_members", "Members that were lost.", "job", "role"),
    _counter("job_failures", "Exceptions that the program raised in workers.", "job"),
    _counter("job_elections", "Masters that began to lead.", "job"),
    _counter("job_rewinds", "Times that a job went back to a checkpoint.", "job"),
    _counter("job_moved_slots", "Moves of slots between servers that are done.", "job"),
    _counter("job_plans", "Plans by what became of them so far.", "job", "outcome"),
    _gauge("job_waiting_plan", "Number of the plan that waits for a person, 0 for none.", "job"),
    _counter("job_checkpoints", "Checkpoints that were opened, became ready, failed.", "job", "outcome"),
    _gauge(
        "job_checkpoint_age_seconds",
        "Seconds since the newest ready checkpoint; +Inf where there is none.",
        "job",
    ),
    _gauge("job_checkpoint_wanted", "Whether a job's file asks for checkpoints on storage.", "job"),
    _gauge("job_switched_off_rules", "Rules that are left out of a job's ticks because they failed.", "job"),
)
BY_NAME: dict[str, MetricFamily] = {family.name: family for family in FAMILIES}

# What the process counts of itself; rendering.py has them.
OWN: tuple[MetricFamily, ...] = (
    _counter("http_requests", "Requests that were answered.", "route", "status"),
    _gauge("web_start_time_seconds", "When the process that serves this started, in Unix seconds."),
)
