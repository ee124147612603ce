"""`checkpoint.redundant` is said once, when the parts cover every slot and each has a copy: never for half a cut (P13)."""

from __future__ import annotations

import pytest

from rover_bus.events import checkpoint_facts as facts
from rover_bus.events import cut_log
from rover_bus.events.checkpoints import PartPlace
from rover_bus.master.cut import Cut
from rover_bus.master.cut_publishing import PUBLISHERS
from rover_bus.master.state import State

STAGED = cut_log.CutStaged(cut=3)


def live(*events):
    """Publish after each event: `staged`, or the number of a part that was copied. Return how often the cut was said redundant."""
    state, said = State(), []
    cut = Cut(number=3, generation=0, epoch=0, samples=0, ledger=b"")
    state.cuts[3] = cut
    for event in events:
        if event == "staged":
            for index in (0, 1):
                cut.parts.setdefault(index, place(index))
            cut.state, record = "staged", STAGED
        else:
            part = f"ps-{event}"
            cut.parts.setdefault(event, place(event))
            cut.copied.setdefault(part, []).append(f"host-{len(cut.copied.get(part, []))}")
            record = cut_log.PartCopied(cut=3, part=part, holder="x")
        said.append(
            sum(
                isinstance(fact, facts.CheckpointRedundant)
                for fact in PUBLISHERS[type(record)]("ads", record, state, 1)
            )
        )
    return said


def place(index):
    return PartPlace(part=f"ps-{index}", index=index, incarnation=1, host="h", slots=[(0, 1)])


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((0, "staged", 1), [0, 0, 1]),
        ((0, 1, "staged"), [0, 0, 1]),
        (("staged", 1, 0), [0, 0, 1]),
        (("staged", 0, 0, 1, 1, 0), [0, 0, 0, 1, 0, 0]),
    ],
)
def test_redundant_is_said_once_and_for_the_whole(events, said):
    assert live(*events) == said
