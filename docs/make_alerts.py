"""Write the alert rules, their unit tests and the runbook's entries from one table; `--check`: are they up to date?

python docs/make_alerts.py [--check]

One alert is one entry: when it fires, by which series a test makes it fire and by which it stays silent, and what a person does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
RULES, TESTS = ROOT / "deploy/prometheus/rover.rules.yml", ROOT / "deploy/prometheus/rover.tests.yml"
CHARTS = ROOT / "deploy/helm/rover/files/rover.rules.yml"  # a chart reads no file outside its folder
RUNBOOK = ROOT / "docs/operations/runbook.md"
BEGIN, END = "<!-- alerts: written by `make docs` -->", "<!-- end of alerts -->"
MADE = "# Written by `make docs` from docs/make_alerts.py.\n"
JOB = 'job="ads"'
STEP_S = 60
Severity = Literal["page", "ticket", "info"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `fires` and `silent`: series of a test, by name, in promtool's notation; `at`: when it is looked at.

    `labels`: those that it fires with. `look`, `do`: the runbook's words.
    """

    name: str
    severity: Severity
    expression: str
    lasts: str
    summary: str
    fires: dict[str, str]
    silent: dict[str, str]
    at: str
    labels: dict[str, str]
    look: str
    do: str


RUNNING = f'rover_job_state{{{JOB},state="running"}}'
ALERTS: tuple[Alert, ...] = (
    Alert(
        "RoverUnseen",
        "page",
        "absent(rover_bus_connected)",
        "5m",
        "no stack is scraped: nothing of it is known here",
        {},
        {"rover_bus_connected": "1x20"},
        "10m",
        {},
        "`rover jobs` where the stack runs; does the process `web` run (`rover up`), is its URL the one that Prometheus asks?",
        "Training does not need it: jobs go on. Start it again, or mend the scrape configuration (its token may have been removed).",
    ),
    Alert(
        "RoverBusAway",
        "page",
        "rover_bus_connected == 0",
        "1m",
        "the broker does not answer",
        {"rover_bus_connected": "0x20"},
        {"rover_bus_connected": "1x20"},
        "5m",
        {},
        "`rover doctor`; the broker's log, `<state>/broker/server.log` or `kubectl logs` of its pod; is its disk full?",
        "Workers finish what they hold and wait; nothing is lost. A broker that was killed is started again by its stack. A full disk: "
        "`rover forget JOB` on ended jobs once it is up, or a larger volume.",
    ),
    Alert(
        "RoverNoBrain",
        "page",
        "rover_brain_leads == 0",
        "2m",
        "no Brain leads: new jobs wait for their first plan, the others keep their sizes",
        {"rover_brain_leads": "0x20"},
        {"rover_brain_leads": "1x20"},
        "5m",
        {},
        "`<state>/services/brain.log`, or the pods of the Brain's Deployment. Exit code 8 is a damaged log, 5 wrong credentials.",
        "It is started again by itself. One that ends again and again says why in its last line.",
    ),
    Alert(
        "RoverHostSilent",
        "ticket",
        "rover_host_up == 0",
        "5m",
        "the daemon of host {{ $labels.host }} is silent",
        {'rover_host_up{host="h1"}': "0x20"},
        {'rover_host_up{host="h1"}': "1x20"},
        "10m",
        {"host": "h1"},
        "Is the machine there? `rover events` has `members.displaced` of each job that had members on it.",
        "Members were placed elsewhere where there is room. `rover up` or `rover join` on the host brings it back; a host that is gone for "
        "good falls silent here after an hour.",
    ),
    Alert(
        "RoverHostSlow",
        "info",
        "rover_host_slow == 1",
        "30m",
        "host {{ $labels.host }} is slow: plans avoid it",
        {'rover_host_slow{host="h1"}': "1x60"},
        {'rover_host_slow{host="h1"}': "0x60"},
        "45m",
        {"host": "h1"},
        "`rover doctor` says how slow, and which members showed it.",
        "Look at what else runs there. It is used again when members show that it is as fast as others, or after `hosts.slow_memory`.",
    ),
    Alert(
        "RoverJobFailed",
        "ticket",
        'rover_job_state{state="failed"} == 1',
        "0m",
        "job {{ $labels.job }} has failed",
        {f'rover_job_state{{{JOB},state="failed"}}': "0 1x20"},
        {f'rover_job_state{{{JOB},state="failed"}}': "0x20"},
        "5m",
        {"job": "ads", "state": "failed"},
        "`rover jobs` has the reason, `rover events JOB -n 20` what came before, `rover logs JOB` what the program said.",
        "`deterministic_failure` is the program's or the data's. `server_lost` without [checkpoint] cannot be mended: add one, submit again.",
    ),
    Alert(
        "RoverJobStalled",
        "page",
        'rover_job_state{state="running"} == 1 and on (job) changes(rover_job_committed_samples[15m]) == 0',
        "5m",
        "job {{ $labels.job }} has trained nothing for 15 minutes",
        {RUNNING: "1x40", f"rover_job_committed_samples{{{JOB}}}": "7x40"},
        {RUNNING: "1x40", f"rover_job_committed_samples{{{JOB}}}": "0+5x40"},
        "30m",
        {"job": "ads", "state": "running"},
        "`rover jobs` says what it waits for; `rover members JOB`; `rover logs JOB`.",
        "Usually no worker runs: a program that does not start on a host is named by `rover jobs`. A paused job is not counted.",
    ),
    Alert(
        "RoverMembersMissing",
        "ticket",
        'rover_job_running_members{role=~"worker|ps"} < rover_job_desired_members',
        "10m",
        "job {{ $labels.job }} lacks members of the role {{ $labels.role }}",
        {
            f'rover_job_running_members{{{JOB},role="ps"}}': "1x30",
            f'rover_job_desired_members{{{JOB},role="ps"}}': "2x30",
        },
        {
            f'rover_job_running_members{{{JOB},role="ps"}}': "2x30",
            f'rover_job_desired_members{{{JOB},role="ps"}}': "2x30",
        },
        "20m",
        {"job": "ads", "role": "ps"},
        "`rover members JOB` and `rover events JOB -k member`; on Kubernetes `kubectl get pods`: pending ones say what they lack.",
        "Room: add a host, or reject the plan that wants more. A host whose program does not start is named by `rover jobs`.",
    ),
    Alert(
        "RoverMembersLost",
        "ticket",
        "sum by (job, role) (increase(rover_job_lost_members_total[30m])) > 5",
        "0m",
        "job {{ $labels.job }} loses members of the role {{ $labels.role }} again and again",
        {f'rover_job_lost_members_total{{{JOB},role="worker"}}': "0+1x40"},
        {f'rover_job_lost_members_total{{{JOB},role="worker"}}': "0 1x40"},
        "30m",
        {"job": "ads", "role": "worker"},
        "`rover events JOB -k member.lost` has the reasons; `out_of_memory` and `preempted` are not the program's fault.",
        "No sample is lost by it. Memory: the Brain doubles a limit that kills; `rover explain` says where no host has the room. Preemptions: another pool of machines.",
    ),
    Alert(
        "RoverProgramFails",
        "ticket",
        "increase(rover_job_failures_total[15m]) > 3",
        "0m",
        "the program of job {{ $labels.job }} raises exceptions",
        {f"rover_job_failures_total{{{JOB}}}": "0+1x30"},
        {f"rover_job_failures_total{{{JOB}}}": "0 1x30"},
        "20m",
        {"job": "ads"},
        "`rover events JOB -k worker.failed` has exception and line, `rover logs JOB` the traceback.",
        "The same exception on several workers ends the job (`deterministic_failure`); a batch that fails alone is dead-lettered.",
    ),
    Alert(
        "RoverSamplesDeadLettered",
        "ticket",
        "delta(rover_job_dead_lettered_samples[30m]) > 0",
        "0m",
        "job {{ $labels.job }} gives samples up",
        {f"rover_job_dead_lettered_samples{{{JOB}}}": "0+10x40"},
        {f"rover_job_dead_lettered_samples{{{JOB}}}": "10x40"},
        "30m",
        {"job": "ads"},
        "`rover events JOB -k batch.dead_lettered -k rows.skipped` names each batch and why.",
        "Mend the data or the program; the job's own result says how many samples it lacks.",
    ),
    Alert(
        "RoverPlanWaits",
        "info",
        "rover_job_waiting_plan > 0",
        "1h",
        "plan {{ $value }} of job {{ $labels.job }} waits for a person",
        {f"rover_job_waiting_plan{{{JOB}}}": "4x100"},
        {f"rover_job_waiting_plan{{{JOB}}}": "0x100"},
        "90m",
        {"job": "ads"},
        "`rover explain JOB`: what it changes, what it is believed to bring, and why not the others.",
        "`rover plan approve JOB`, `rover plan reject JOB`, or on the page; of a RoverJob `kubectl rover kube approve JOB -n NAMESPACE`. `rover plan mode JOB auto` asks no person any more.",
    ),
    Alert(
        "RoverPredictionMissed",
        "info",
        "rover_job_throughput < 0.6 * (rover_job_predicted_throughput > 0)",
        "30m",
        "job {{ $labels.job }} is far slower than its plan promised",
        {
            f"rover_job_throughput{{{JOB}}}": "50x60",
            f"rover_job_predicted_throughput{{{JOB}}}": "100x60",
        },
        {
            f"rover_job_throughput{{{JOB}}}": "50x60",
            f"rover_job_predicted_throughput{{{JOB}}}": "0x60",
        },
        "45m",
        {"job": "ads"},
        "`rover explain JOB` has predicted and measured; `rover events JOB -k straggler -k incident`; is a host slow?",
        "The Brain reverts what does not pay. One that stays slow usually shares its machine, or its storage, with others.",
    ),
    Alert(
        "RoverCheckpointOld",
        "ticket",
        'rover_job_checkpoint_age_seconds > 1800 and on (job) rover_job_checkpoint_wanted == 1 and on (job) rover_job_state{state="running"} == 1',
        "5m",
        "job {{ $labels.job }} has had no checkpoint for half an hour",
        {
            f"rover_job_checkpoint_age_seconds{{{JOB}}}": "3000+60x20",
            f"rover_job_checkpoint_wanted{{{JOB}}}": "1x20",
            RUNNING: "1x20",
        },
        {
            f"rover_job_checkpoint_age_seconds{{{JOB}}}": "60x20",
            f"rover_job_checkpoint_wanted{{{JOB}}}": "1x20",
            RUNNING: "1x20",
        },
        "10m",
        {"job": "ads"},
        "`rover jobs` says why in its reason; `rover events JOB -k checkpoint`.",
        "A full or slow storage is named there. Until it is mended a lost server costs the training since the last one.",
    ),
    Alert(
        "RoverCheckpointsFail",
        "ticket",
        'increase(rover_job_checkpoints_total{outcome="failed"}[30m]) > 2',
        "0m",
        "checkpoints of job {{ $labels.job }} fail",
        {f'rover_job_checkpoints_total{{{JOB},outcome="failed"}}': "0+1x40"},
        {f'rover_job_checkpoints_total{{{JOB},outcome="failed"}}': "0 1x40"},
        "30m",
        {"job": "ads", "outcome": "failed"},
        "`rover events JOB -k checkpoint.failed` has the reason of each.",
        "No room in shared memory: fewer copies, more servers, or a larger /dev/shm. Storage: its rights and its room.",
    ),
    Alert(
        "RoverMastersChange",
        "ticket",
        "increase(rover_job_elections_total[15m]) > 5",
        "0m",
        "the master of job {{ $labels.job }} changes again and again",
        {f"rover_job_elections_total{{{JOB}}}": "0+1x30"},
        {f"rover_job_elections_total{{{JOB}}}": "0 1x30"},
        "20m",
        {"job": "ads"},
        "`rover logs JOB master-0`; a machine that is overloaded loses the lead within `leadership.master_ttl`.",
        "Each change costs the job about a second. Raise the setting on a busy machine, or give it cores.",
    ),
    Alert(
        "RoverRuleSwitchedOff",
        "ticket",
        "rover_job_switched_off_rules > 0",
        "0m",
        "a rule of job {{ $labels.job }} failed three times and is left out",
        {f"rover_job_switched_off_rules{{{JOB}}}": "1x20"},
        {f"rover_job_switched_off_rules{{{JOB}}}": "0x20"},
        "5m",
        {"job": "ads"},
        "`rover jobs` and `rover events JOB -k rule` have the rule and its error: a defect of this release.",
        "Training goes on without it, unless exactness rests on it: then the job is paused. Report the error; a release that mends it tries "
        "again by itself.",
    ),
    Alert(
        "RoverStoreNearlyFull",
        "page",
        "rover_store_bytes / (rover_store_limit_bytes > 0) > 0.8",
        "5m",
        "the broker's store is nearly full: once it is, no job decides anything",
        {"rover_store_bytes": "700+20x20", "rover_store_limit_bytes": "1000x20"},
        {"rover_store_bytes": "700x20", "rover_store_limit_bytes": "1000x20"},
        "15m",
        {},
        "`rover doctor` says when it will be full at the growth of the last hour, and which jobs ended first; `rover disk` what each job costs.",
        "`rover forget JOB` on ended jobs, `rover up --max-store` with more, or a larger disk. A full store loses nothing: jobs wait, and go on "
        "once there is room.",
    ),
    Alert(
        "RoverTenantStoreNearlyFull",
        "ticket",
        "rover_tenant_store_bytes / (rover_tenant_store_limit_bytes > 0) > 0.8",
        "5m",
        "the store of tenant {{ $labels.tenant }} is nearly full: once it is, none of its jobs decides anything",
        {
            'rover_tenant_store_bytes{tenant="ads"}': "850x20",
            'rover_tenant_store_limit_bytes{tenant="ads"}': "1000x20",
            'rover_tenant_store_bytes{tenant="default"}': "9000x20",
            'rover_tenant_store_limit_bytes{tenant="default"}': "0x20",
        },
        {
            'rover_tenant_store_bytes{tenant="ads"}': "790x20",
            'rover_tenant_store_limit_bytes{tenant="ads"}': "1000x20",
            'rover_tenant_store_bytes{tenant="default"}': "9000x20",
            'rover_tenant_store_limit_bytes{tenant="default"}': "0x20",
        },
        "10m",
        {"tenant": "ads"},
        "`rover disk --tenant T` says what each job of it costs.",
        "`rover forget T/JOB` on its ended jobs, or a larger limit: `rover auth add T --store SIZE`; in a release of the chart its `store` in `tenants`, and `helm upgrade`. Other tenants are not touched by it.",
    ),
    Alert(
        "RoverFactsRefused",
        "ticket",
        "increase(rover_facts_refused_total[1h]) > 0",
        "0m",
        "facts are stored that no reader believes",
        {"rover_facts_refused_total": "0x10 3x80"},
        {"rover_facts_refused_total": "3x90"},
        "60m",
        {},
        "`rover doctor` names them; `rover events` shows them as passed over, with what does not fit.",
        "A process with rights that it should not have, or one of a newer release. `rover auth users` lists credentials, `revoke` ends them.",
    ),
)


def main(arguments: list[str]) -> int:
    """Write the files, or say whether they are as they should be."""
    before, rest = RUNBOOK.read_text().split(BEGIN)
    after = rest.split(END)[1]
    made = {
        RULES: MADE + json.dumps(rules(), indent=2) + "\n",
        CHARTS: MADE + json.dumps(rules(), indent=2) + "\n",
        TESTS: MADE + json.dumps(tests(), indent=2) + "\n",
        RUNBOOK: f"{before}{BEGIN}\n{''.join(entries())}{END}{after}",
    }
    for path, text in made.items():
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.stderr.write(f"{path.relative_to(ROOT)} has drifted: run `make docs` and commit\n")
            return 1
    return 0


def rules() -> dict[str, object]:
    """Return the rule file: JSON is YAML."""
    return {"groups": [{"name": "rover", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "runbook": f"docs/operations/runbook.md#{alert.name.lower()}",
        },
    }


def tests() -> dict[str, object]:
    """Return promtool's unit tests: each alert fires on its series, and on none that is well."""
    cases = []
    for alert in ALERTS:
        fired = {"exp_labels": {"severity": alert.severity, **alert.labels}}
        for series, expected in ((alert.fires, [fired]), (alert.silent, [])):
            cases.append(
                {
                    "name": f"{alert.name} {'fires' if expected else 'stays silent'}",
                    "interval": f"{STEP_S}s",
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    "alert_rule_test": [
                        {
                            "eval_time": alert.at,
                            "alertname": alert.name,
                            "exp_alerts": [
                                each | {"exp_annotations": _annotations(alert)} for each in expected
                            ],
                        }
                    ],
                }
            )
    return {"rule_files": [RULES.name], "evaluation_interval": f"{STEP_S}s", "tests": cases}


def _annotations(alert: Alert) -> dict[str, str]:
    said = alert.summary.replace("{{ $value }}", "4")
    for label, value in alert.labels.items():
        said = said.replace(f"{{{{ $labels.{label} }}}}", value)
    return {"summary": said, "runbook": f"docs/operations/runbook.md#{alert.name.lower()}"}


def entries() -> Iterator[str]:
    """Yield the runbook's entry of each alert."""
    for alert in ALERTS:
        said = alert.summary.replace("{{ $labels.", "").replace(" }}", "").replace("{{ $value", "N")
        yield f"\n### {alert.name}\n\n"
        yield f"*{said[0].upper()}{said[1:]}* ({alert.severity}). `{alert.expression}`, for {alert.lasts}.\n\n"
        yield f"Look: {alert.look}\n\nDo: {alert.do}\n"
    yield "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
