"""Write docs/metrics.md, docs/http.md and docs/openapi.json from the tables of rover_bus/web; `--check`: are they up to date?

python docs/make_http.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rover_bus.web.families import FAMILIES, OWN
from rover_bus.web.openapi import document
from rover_bus.web.routes import ROUTES

DOCS = Path(__file__).parent
METRICS = """\
# Metrics

Written by `make docs` from `rover_bus/web/families.py`. `GET /metrics` of what serves the page has all of them: one target a
stack, where `rover up` says. On loopback it asks for no token; elsewhere for one that may scrape (`rover auth page-token
prometheus --metrics`), unless `rover web --open-metrics` says otherwise. Why it is so: [0063](design/0063-what-serves-http.md).

The label `job` is a job of the stack, so the scrape says `honor_labels: true` ([runbook](operations/runbook.md)).
A job has series while it runs and for ten minutes after its end; of more than 200 jobs at once the last 200. Figures rest on
facts, so a counter goes on where it was when the process restarts; it is less only after facts were purged, which Prometheus
takes for a restart.

| Metric | Kind | Labels | Meaning |
|---|---|---|---|
"""
HTTP = """\
# HTTP

Written by `make docs` from `rover_bus/web/routes.py`; [openapi.json](openapi.json) is the same for programs, also served as
`/api/v1/openapi.json`. Why it is so: [0063](design/0063-what-serves-http.md).

A token is made by `rover auth page-token` and sent as `Authorization: Bearer TOKEN`. What may act may look, and what may look
may scrape. On loopback looking and scraping need none. An error is `{"code": ..., "message": ...}`. Each answer of the API has
the header `Rover-Sequence`: the newest fact that was known when the answer was begun; with `at` the job's newest
that was known then. `Rover-Timeline` is another number after each restore from a backup, where sequences and numbers of plans are
given again: what was read before is to be read again, and an action that sends the number with it is refused (409, `restored`)
where it is another one.

| Route | Needs | What it does |
|---|---|---|
| `GET /healthz` | nothing | 200 while the process answers |
| `GET /readyz` | nothing | 200 once all that is stored has been read, while the broker is there; else 503 |
| `GET /` | nothing | the page; its files are below `/static` |
| `GET /metrics` | metrics | [metrics](metrics.md) for Prometheus |
"""


def main(arguments: list[str]) -> int:
    """Write the files, or say whether they are as they should be."""
    made = {
        DOCS / "metrics.md": METRICS + "\n".join(metrics()) + "\n",
        DOCS / "http.md": HTTP + "\n".join(routes()) + "\n",
        DOCS / "openapi.json": json.dumps(document(version("rover-bus")), indent=2) + "\n",
    }
    for path, text in made.items():
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.stderr.write(f"{path.relative_to(DOCS.parent)} has drifted: run `make docs` and commit\n")
            return 1
    return 0


def metrics() -> Iterator[str]:
    """Yield a row a metric."""
    for family in (*FAMILIES, *OWN):
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.about} |"


def routes() -> Iterator[str]:
    """Yield a row a route."""
    for route in ROUTES:
        takes = "".join(f" `{each.name}`: {each.about}" for each in route.parameters if each.where == "query")
        yield f"| `{route.method} {route.path}` | {route.need} | {route.about}{takes} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
