"""Every kind of fact has its line in the table that says how long it is kept."""

from rover_bus.events.codec import EVENTS
from rover_bus.events.fact import Fact
from rover_bus.events.streams import FACTS_KEPT


def test_every_kind_of_fact_says_how_long_it_is_kept():
    kinds = {tag.rsplit(".", 1)[0] for tag, kind in EVENTS.items() if issubclass(kind, Fact)}
    assert sorted(kinds - FACTS_KEPT.keys()) == [], "these would be kept for ever"
    assert sorted(FACTS_KEPT.keys() - kinds) == [], "no fact is of these kinds"
