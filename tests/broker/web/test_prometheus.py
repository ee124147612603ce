"""A real Prometheus scrapes a job that runs: promtool accepts metrics and rules, every query of every dashboard has rows."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asked_page import AskedPage, page_of
from patience import until
from small_job import SmallJob

from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, RunningStack

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES, TESTS = DEPLOY / "prometheus" / "rover.rules.yml", DEPLOY / "prometheus" / "rover.tests.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="no prometheus here: apt-get install prometheus"
    ),
]
EVERY_S = 1


def promtool(*words: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["promtool", *words], input=said, capture_output=True, check=False, timeout=120)


class Prometheus:
    """One that runs, asked by its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **query: str) -> Any:
        asked = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    def rows(self, expression: str) -> list[Any]:
        return self.ask("query", query=expression).get("result", [])


@contextmanager
def prometheus(folder: Path, page: AskedPage) -> Iterator[Prometheus]:
    """Run one that scrapes a page with a token that may scrape and nothing else."""
    (folder / "token").write_text(page.token("prometheus", "--metrics"))
    scrape = {
        "job_name": "rover",
        "scrape_interval": f"{EVERY_S}s",
        "honor_labels": True,
        "authorization": {"credentials_file": str(folder / "token")},
        "static_configs": [{"targets": [page.url.removeprefix("http://")]}],
    }
    configuration = {
        "scrape_configs": [scrape],
        "rule_files": [str(RULES)],
        "global": {"evaluation_interval": "1s"},
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with (folder / "prometheus.log").open("wb") as log:
        running = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={LOOPBACK}:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(f"http://{LOOPBACK}:{port}")
    finally:
        running.terminate()
        running.wait(60)


def queries() -> list[tuple[str, str]]:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += [(f"{path.stem}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


def test_promtool_accepts_the_rules_and_each_alert_fires_on_its_series_and_on_none_that_is_well() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stderr
    tested = promtool("test", "rules", str(TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_an_alert_that_would_never_fire_fails_its_test(tmp_path: Path) -> None:
    for file in (RULES, TESTS):
        (tmp_path / file.name).write_text(file.read_text())
    rules = json.loads("\n".join(RULES.read_text().splitlines()[1:]))
    for rule in rules["groups"][0]["rules"]:
        rule["expr"] = f"({rule['expr']}) and on () vector(1) == 2"
    (tmp_path / RULES.name).write_text(json.dumps(rules))
    tested = promtool("test", "rules", str(tmp_path / TESTS.name))
    assert tested.returncode != 0


def test_a_real_prometheus_scrapes_a_job_and_every_query_of_every_dashboard_has_rows(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    with RunningStack(tmp_path / "state", here=Here(page=LOOPBACK)) as stack:
        page = page_of(stack)
        job = SmallJob(
            folder=tmp_path,
            home=tmp_path / "state",
            rows=40_000,
            epochs=1,
            workers=1,
            servers=1,
            checkpoint='every = "1s"',
        )
        job.submit()
        with prometheus(tmp_path / "p", page) as scraper:
            until(lambda: scraper.rows('rover_job_state{state="running"} == 1'), "a job that trains", 0.2)
            until(
                lambda: scraper.rows('rover_job_checkpoints_total{outcome="ready"} > 0'), "a checkpoint", 0.2
            )
            until(lambda: scraper.rows("rover_job_used_memory_bytes > 0"), "a sample of its host", 0.2)
            (target,) = scraper.ask("targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            asked = queries()
            assert len(asked) > 20
            for title, expression in asked:
                filled = expression.replace("$job", ".*")
                # An increase needs two scrapes of its series.
                until(lambda filled=filled: scraper.rows(filled), f"{title}: {expression}", 0.5)  # type: ignore[misc]
                rows = scraper.rows(filled)
                assert any(row["value"][1] != "NaN" for row in rows) or "rover_job_loss" in expression
            alerts = scraper.ask("rules")["groups"][0]["rules"]
            assert {alert["health"] for alert in alerts} == {"ok"}
            assert not [alert["name"] for alert in alerts if alert["state"] == "firing"]
            text = page.ask("/metrics").body
            assert b"rover_job_throughput" in text
            checked = promtool("check", "metrics", said=text)
            assert checked.returncode == 0, checked.stdout + checked.stderr
            assert checked.stdout + checked.stderr == b""
            series = scraper.rows('count({job=~".+", __name__=~"rover_.+"})')
            assert int(series[0]["value"][1]) < 500
        job.finish()
