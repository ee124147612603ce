"""A whole run with starts that cost little: the same row, with the same seeds, ends sooner."""

from __future__ import annotations

from bench.simulation import quick_starts, worlds
from bench.simulation.generator import generate
from bench.simulation.policies.equipped import Equipped
from bench.simulation.policies.static import TunedStatic
from bench.simulation.port import Setting


def test_the_same_row_ends_sooner_with_first_servers() -> None:
    workload = generate(worlds.W1(), 3, jobs=4)
    plain, quick = (
        quick_starts.run(
            workload, Equipped(Setting(worlds.W1.menu, 3), TunedStatic), spares=False, first=first
        )
        for first in (False, True)
    )
    assert quick["jct_mean_s"] < plain["jct_mean_s"]
