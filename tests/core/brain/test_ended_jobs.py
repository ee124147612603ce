"""Which ended jobs are forgotten, and in which order: never one that runs, nor one whose checkpoint a running one started from."""

from __future__ import annotations

import pytest

from rover_bus.brain.ended_jobs import JobRun, ended_first, next_to_forget
from rover_bus.events.settings import RetentionSettings

DAY_MS = 86_400_000
KNOWN = {
    "runs": JobRun("0000000000a1", started_from="0000000000a3"),
    "late": JobRun("0000000000a2", ended_ms=5 * DAY_MS),
    "origin": JobRun("0000000000a3", ended_ms=1 * DAY_MS),
    "early": JobRun("0000000000a4", started_from="0000000000a2", ended_ms=3 * DAY_MS),
}


def test_those_that_ended_first_go_first_and_what_is_in_use_stays() -> None:
    assert [name for name, _ in ended_first(KNOWN)] == ["early", "late"]


@pytest.mark.parametrize(
    ("retention", "stored", "forgotten"),
    [
        (RetentionSettings(), 1 << 40, None),
        (RetentionSettings(jobs_age_s=8 * 86_400.0), 0, None),
        (RetentionSettings(jobs_age_s=6 * 86_400.0), 0, "early"),
        (RetentionSettings(store_size_bytes=1000), 1000, None),
        (RetentionSettings(store_size_bytes=1000), 1001, "early"),
    ],
)
def test_age_and_size_each_have_their_limit(
    retention: RetentionSettings, stored: int, forgotten: str | None
) -> None:
    due = next_to_forget(ended_first(KNOWN), retention, stored, 10 * DAY_MS)
    assert (due and due[0]) == forgotten


def test_nothing_is_forgotten_where_no_job_has_ended() -> None:
    assert next_to_forget([], RetentionSettings(store_size_bytes=1), 10**9, 0) is None
