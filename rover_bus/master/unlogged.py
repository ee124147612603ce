"""What a master remembers without logging it: clocks, rates and requests that wait. A successor begins with none of it (P19).

One struct beside the state, so that what a rule may forget is told by the type of its parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rover_bus.master.cutting import Pace
from rover_bus.master.rollout import Patience, Telemetry
from rover_bus.master.searching import SearchClock
from rover_bus.master.waiting import HeldRequests
from rover_bus.master.watch import Watch


@dataclass(slots=True)
class Unlogged:
    """`watch`: who was heard when; `held`: lease requests that wait; the others: how long something lasts already."""

    watch: Watch = field(default_factory=lambda: Watch(1.0))
    patience: Patience = field(default_factory=Patience)
    telemetry: Telemetry = field(default_factory=Telemetry)
    pace: Pace = field(default_factory=Pace)
    held: HeldRequests = field(default_factory=HeldRequests)
    search_clock: SearchClock = field(default_factory=SearchClock)
