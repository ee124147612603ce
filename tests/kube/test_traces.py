"""Traces of a job in pods: one joins the Brain's plan, the operator's calls of the API server, and the start of a member."""

from __future__ import annotations

from pathlib import Path

from collector import collecting, environment
from kube_cluster import Cluster
from pod_stacks import pod_stack
from small_job import SmallJob


def test_one_trace_joins_a_plan_the_calls_of_the_api_server_and_the_start_of_a_member(
    cluster: Cluster, node: str, namespace: str, tmp_path: Path
) -> None:
    with (
        collecting() as collector,
        environment(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="100"),
        pod_stack(cluster, namespace, tmp_path) as stack,
    ):
        job = SmallJob(
            folder=tmp_path,
            home=stack.home.root,
            rows=640,
            epochs=1,
            workers=1,
            servers=1,
            checkpoint='path = "store"\nevery = "1h"',
        )
        job.submit()
        plan = collector.wait_for("plan", job="ads", plan=1)
        process = collector.wait_for("member.process", member="worker-0.1")
        admission = collector.wait_for("member.admission", member="worker-0.1")
        commit = collector.wait_for("member.first_commit", member="worker-0.1")
        calls = [each for each in collector.named("api.call") if each.parent == process.id]
        job.complete()
    assert {process.trace, admission.trace, commit.trace} == {plan.trace}
    assert (process.service, admission.service) == ("rover-operator", "rover-master")
    assert next((each.attributes["http.request.method"], each.service) for each in calls) == (
        "POST",
        "rover-operator",
    )
    assert {each.trace for each in calls} == {plan.trace}
    assert all(
        "/pods" in each.attributes["url.path"] or "/secrets" in each.attributes["url.path"] for each in calls
    )
    started = [
        each for each in collector.named("member.process") if each.attributes["rover.member"] == "master-0.1"
    ]
    assert [each.trace for each in started] == [plan.trace]
