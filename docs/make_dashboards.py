"""Write the dashboards for Grafana below deploy/grafana from one table; `--check`: are they up to date?

python docs/make_dashboards.py [--check]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "grafana"
COLUMNS, WIDTH, HEIGHT = 2, 12, 8
REACTIONS = "sum by (le) (rate(rover_operator_reaction_seconds_bucket[5m]))"
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. `queries`: (expression, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard. `variable`: a label whose values are chosen, with the metric that has them; "" for none."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    variable: tuple[str, str] = ("", "")


DASHBOARDS = (
    Dashboard(
        "rover-jobs",
        "rover: jobs",
        (
            Panel(
                "Throughput, measured and predicted",
                "short",
                (
                    ('rover_job_throughput{job=~"$job"}', "{{job}} measured"),
                    ('rover_job_predicted_throughput{job=~"$job"}', "{{job}} predicted"),
                ),
            ),
            Panel("Samples trained", "short", (('rover_job_committed_samples{job=~"$job"}', "{{job}}"),)),
            Panel("Time to the end", "s", (('rover_job_remaining_seconds{job=~"$job"}', "{{job}}"),)),
            Panel(
                "Members, running and desired",
                "short",
                (
                    ('rover_job_running_members{job=~"$job"}', "{{job}} {{role}}"),
                    ('rover_job_desired_members{job=~"$job"}', "{{job}} {{role}} desired"),
                ),
            ),
            Panel(
                "Where the workers' time goes",
                "percentunit",
                (('rover_job_worker_time_ratio{job=~"$job"}', "{{job}} {{activity}}"),),
            ),
            Panel("Cores in use", "short", (('rover_job_used_cores{job=~"$job"}', "{{job}} {{role}}"),)),
            Panel(
                "Memory in use", "bytes", (('rover_job_used_memory_bytes{job=~"$job"}', "{{job}} {{role}}"),)
            ),
            Panel("Loss", "short", (('rover_job_loss{job=~"$job"}', "{{job}}"),)),
            Panel(
                "Plans a quarter of an hour",
                "short",
                (
                    (
                        'sum by (job, outcome) (increase(rover_job_plans_total{job=~"$job"}[15m]))',
                        "{{job}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "What was lost a quarter of an hour",
                "short",
                (
                    (
                        'sum by (job, role) (increase(rover_job_lost_members_total{job=~"$job"}[15m]))',
                        "{{job}} {{role}}",
                    ),
                    ('increase(rover_job_failures_total{job=~"$job"}[15m])', "{{job}} exceptions"),
                    ('increase(rover_job_rewinds_total{job=~"$job"}[15m])', "{{job}} rewinds"),
                ),
            ),
            Panel(
                "Age of the newest checkpoint",
                "s",
                (('rover_job_checkpoint_age_seconds{job=~"$job"}', "{{job}}"),),
            ),
            Panel(
                "Samples given up", "short", (('rover_job_dead_lettered_samples{job=~"$job"}', "{{job}}"),)
            ),
        ),
        ("job", "rover_job_samples"),
    ),
    Dashboard(
        "rover-stack",
        "rover: the stack",
        (
            Panel("Jobs by state", "short", (("rover_jobs", "{{state}}"),)),
            Panel(
                "Broker, Brain, hosts",
                "short",
                (
                    ("rover_bus_connected", "broker"),
                    ("rover_brain_leads", "Brain"),
                    ("sum(rover_host_up)", "hosts"),
                    ("sum(rover_host_slow)", "slow hosts"),
                ),
            ),
            Panel(
                "Cores of hosts",
                "short",
                (("rover_host_used_cores", "{{host}} used"), ("rover_host_cores", "{{host}} has")),
            ),
            Panel(
                "Memory of hosts",
                "bytes",
                (
                    ("rover_host_used_memory_bytes", "{{host}} used"),
                    ("rover_host_memory_bytes", "{{host}} has"),
                ),
            ),
            Panel("What the broker stores", "bytes", (("rover_stream_bytes", "{{stream}}"),)),
            Panel(
                "Stores and their limits",
                "bytes",
                (
                    ("rover_store_bytes", "all"),
                    ("rover_store_limit_bytes", "limit"),
                    ("rover_tenant_store_bytes", "{{tenant}}"),
                    ("rover_tenant_store_limit_bytes > 0 or vector(0)", "{{tenant}} limit"),
                ),
            ),
            Panel("Facts a second", "short", (("rate(rover_facts_sequence[5m])", "facts"),)),
            Panel(
                "Plans that wait for a person",
                "short",
                (("rover_job_waiting_plan > 0 or vector(0)", "{{job}}"),),
            ),
            Panel(
                "Kubernetes: from a plan to its requests",
                "s",
                tuple(
                    (f"histogram_quantile({share}, {REACTIONS}) or vector(0)", f"{share:.0%}")
                    for share in (0.5, 0.99)
                ),
            ),
            Panel(
                "Requests a second",
                "reqps",
                (("sum by (route, status) (rate(rover_http_requests_total[5m]))", "{{route}} {{status}}"),),
            ),
        ),
    ),
)


def main(arguments: list[str]) -> int:
    """Write the files, or say whether they are as they should be."""
    for dashboard in DASHBOARDS:
        path, text = FOLDER / f"{dashboard.name}.json", json.dumps(described(dashboard), indent=2) + "\n"
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.stderr.write(f"{path.relative_to(ROOT)} has drifted: run `make docs` and commit\n")
            return 1
    return 0


def described(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    label, metric = dashboard.variable
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if label:
        variables.append(
            {
                "name": label,
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": f"label_values({metric}, {label})", "refId": label},
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["rover"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(panel, number) for number, panel in enumerate(dashboard.panels)],
    }


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": {"lineWidth": 1, "fillOpacity": 0}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
