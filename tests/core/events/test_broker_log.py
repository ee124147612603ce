"""What a broker says of a full disk is found in its log, in each form that was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.events.broker_log import BrokerLog

BLOCK = "write /s/jetstream/$G/streams/ROVER_LOG/msgs/1.blk: no space left on device"


@pytest.mark.parametrize(
    "said",
    [
        "JetStream out of space, critical write error detected",
        f"Filestore [ROVER_LOG] Critical write error: {BLOCK}",
        f"JetStream failed to store a msg on stream '$G > ROVER_LOG': {BLOCK}",
        f"JetStream failed to store a msg on[7] [ERR] JetStream failed to store a msg on stream '$G > ROVER_LOG': {BLOCK}",
    ],
)
def test_a_full_disk_is_found_in_whatever_form_the_broker_could_write_it_down(
    said: str, tmp_path: Path
) -> None:
    """The log lies on the disk that is full: of the line that is written once, nothing or half of it may be left."""
    path = tmp_path / "nats-server.log"
    path.write_text(f"[6] [ERR] {said}\n")
    log = BrokerLog(path)
    log.begin()  # what a former server said is of no interest
    log.look()
    assert log.write_error is None
    with path.open("a") as file:
        file.write(f"[7] [INF] Server is ready\n[7] [ERR] {said}\n")
    log.look()
    assert log.write_error == f"[7] [ERR] {said}"
