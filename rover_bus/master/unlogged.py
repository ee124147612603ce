"""What a master remembers without logging it: clocks, rates and requests that wait. A successor begins with none of it (P19).

One struct beside the state, so that what a rule may forget is told by the type of its parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rover_bus.master.cutting import CutPace
from rover_bus.master.refitting import OwedRefits
from rover_bus.master.releasing import ReleaseClock
from rover_bus.master.relieving import Successors
from rover_bus.master.rollout import StepPatience
from rover_bus.master.searching import SearchClock
from rover_bus.master.stepping import Gathering, StepClock
from rover_bus.master.traffic import Telemetry
from rover_bus.master.waiting import HeldRequests
from rover_bus.master.watch import Liveness


@dataclass(slots=True)
class Unlogged:
    """`watch`: when each member was observed; `held`: lease requests that wait; the others: how long something lasts already."""

    watch: Liveness = field(default_factory=lambda: Liveness(1.0))
    patience: StepPatience = field(default_factory=StepPatience)
    telemetry: Telemetry = field(default_factory=Telemetry)
    pace: CutPace = field(default_factory=CutPace)
    held: HeldRequests = field(default_factory=HeldRequests)
    search_clock: SearchClock = field(default_factory=SearchClock)
    steps: StepClock = field(default_factory=StepClock)
    gathering: Gathering = field(default_factory=Gathering)
    first_servers: StepClock = field(default_factory=StepClock)
    release: ReleaseClock = field(default_factory=ReleaseClock)
    successors: Successors = field(default_factory=Successors)
    refits: OwedRefits = field(default_factory=OwedRefits)
