"""A plan of a simulated history that histories of one rule change to what they need: deliveries dropped, doubled and late."""

from rover_bus.events.memory_links import CALM
from rover_bus.simulation.plan import Plan

ROUGH_DELIVERY = Plan(
    seed=5,
    records=900,
    batch_size=5,
    epochs=1,
    workers=3,
    servers=2,
    batch_s=0.1,
    target_s=1.0,
    faults=CALM,
    drop=0.1,
    double=0.2,
    delay_s=0.05,
    in_flight=2,
)
