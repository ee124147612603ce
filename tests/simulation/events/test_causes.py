"""Every fact of whole histories under chance names what led to it, and its story reaches the submission (design 2.4)."""

from __future__ import annotations

from walked import offenders

from rover_bus.cli.views.history import read_happened


def test_the_story_of_every_fact_of_a_history_reaches_its_submission(histories) -> None:
    kinds: set[str] = set()
    for seed, facts in histories.facts.items():
        happened = [read_happened(stored) for stored in facts]
        kinds |= {each.fact.kind() for each in happened if each.fact is not None}
        assert offenders(happened) == [], f"seed {seed}"
    assert {"member.lost", "ledger.rewound", "checkpoint.opened", "slots.moved"} <= kinds
