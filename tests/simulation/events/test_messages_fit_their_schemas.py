"""What the deciders write is what schemas/ says: up to 1,000 messages of each kind from histories under chance."""

from __future__ import annotations

from schemas_of_events import A_KIND


def test_what_histories_write_fits_the_schemas(histories) -> None:
    judge = histories.judge
    assert judge.complaints == []
    for often in ("log.batch.v1", "lease.v1", "heartbeat.v1"):
        assert judge.seen[often] == A_KIND
    assert len(judge.seen) >= 45, sorted(judge.seen)
