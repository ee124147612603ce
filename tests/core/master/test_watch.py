"""What a master remembers and never logs: how fast its job is."""

from __future__ import annotations

from rover_bus.master.watch import Liveness


def test_progress_is_told_every_five_seconds_and_counted_anew_after_a_rewind() -> None:
    watch = Liveness(1.0)
    told = [watch.progress(samples, now) for samples, now in ((0, 0.0), (400, 4.0), (500, 5.0), (100, 10.0))]
    assert told == [None, None, 100.0, None], "what is trained again is no negative speed"
    assert watch.progress(600, 15.0) == 100.0
