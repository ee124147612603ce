"""A cut whose place in the data is too large for any message fails by name; nothing waits for a manifest of it."""

from __future__ import annotations

import pytest

from rover_bus.events import log
from rover_bus.events.checkpoint_facts import CheckpointFailed, HostPartPersisted
from rover_bus.events.checkpoints import PartPlace
from rover_bus.events.codec import MAX_BODY_BYTES
from rover_bus.events.data_facts import EpochOpened
from rover_bus.events.job import Dataset, DataSpec, JobSpec
from rover_bus.master import cutting
from rover_bus.master.cut import Cut, position
from rover_bus.master.intervals import IntervalSet
from rover_bus.master.ledger import Ledger
from rover_bus.master.state import OpenedJob, State


def with_holes(holes: int) -> bytes:
    """The place in the data of an epoch of which every second batch is committed."""
    ledger = Ledger.new(Dataset(records=20 * holes, batch_size=10, epochs=1))
    ledger.begin_epoch(EpochOpened(epoch=0))
    ledger.frontier = 2 * holes
    ledger.done = IntervalSet.of((at, at + 1) for at in range(0, 2 * holes, 2))
    return position(ledger)


@pytest.mark.parametrize(("holes", "record"), [(1_000, log.ManifestOrdered), (900_000, CheckpointFailed)])
def test_the_manifest_of_a_cut_is_ordered_only_where_a_message_can_hold_it(holes, record):
    cut = Cut(number=3, generation=0, epoch=0, samples=0, ledger=with_holes(holes))
    assert (len(cut.ledger) > MAX_BODY_BYTES) == (holes > 1_000)  # larger than any message
    cut.parts[0] = PartPlace(part="ps-0", index=0, incarnation=1, host="h", slots=[(0, 4096)])
    cut.state, cut.ordered = "staged", True
    spec = JobSpec(name="j", program=["train"], data=DataSpec(train="t"))
    state = State(job=OpenedJob(spec, "0123456789ab", 1))
    state.cuts.known[3] = cut
    stored = HostPartPersisted(
        host="h", job="j", uid="0123456789ab", generation=0, cut=3, part="ps-0", daemon="d", files=[]
    )
    said = []
    for each in cutting.notice(state, stored, "ROVER_FACTS:9"):
        said.append(each)
        if isinstance(each, log.PartStored):
            cut.stored[0] = each.stored
        cut.over = isinstance(each, CheckpointFailed)
    assert [type(each) for each in said] == [log.PartStored, record]
    assert record is log.ManifestOrdered or "no message" in said[1].reason
