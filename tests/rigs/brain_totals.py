"""Whether the totals that are kept beside a Brain's state are what the state adds up to."""

from __future__ import annotations

from rover_bus.brain.state import BrainState
from rover_bus.brain.totals import Total, Totals, totals_of


def assert_totals_agree(state: BrainState) -> None:
    """Compare what was kept record by record with what is added up anew."""
    kept, anew = totals_of(state), Totals.of(state)
    for name in ("given", "unbound", "holding", "with_servers", "now", "coming", "waiting", "shrinking"):
        assert getattr(kept, name) == getattr(anew, name), name
    for name in ("by_priority", "by_tenant", "coming_by_tenant"):
        assert _some(getattr(kept, name)) == _some(getattr(anew, name)), name
    assert list(kept.roomiest(state)) == list(anew.roomiest(state))
    assert kept.host_order(state) == anew.host_order(state)


def _some(totals: dict[object, Total]) -> dict[object, Total]:
    return {key: total for key, total in totals.items() if total != Total()}
