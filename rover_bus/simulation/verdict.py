"""The judge: reads the witness that the servers wrote, and compares it with what the job says of itself.

Every sample adds 1 at its own position, so a loss is a 0, a double is a 2. The ledger's own count proves nothing; it must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rover_bus.simulation.plan import Plan
from rover_bus.simulation.tables import WitnessPart


@dataclass(frozen=True)
class Verdict:
    """What a history came to. `wrong` is empty when everything holds."""

    state: str
    wrong: tuple[str, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.wrong

    def and_also(self, wrong: Iterable[str]) -> Verdict:
        """Return this verdict with what else is wrong."""
        return replace(self, wrong=(*self.wrong, *wrong))


def judge(
    plan: Plan, state: str, reason: str, summary: Mapping[str, Any], parts: Sequence[WitnessPart]
) -> Verdict:
    """Compare witness, ledger and what was planned to fail. `parts`: what the servers wrote at the end."""
    wrong: list[str] = []
    origins = sorted({part.origin for part in parts})
    if len(origins) > 1:
        wrong.append(f"the parts are not one whole model: (timeline, generation, routing, servers) {origins}")
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(part.counts)
    total = plan.records * plan.epochs
    if state != "completed":
        wrong.append(f"the job ended as {state} {reason}")
    excused = _excused(plan)
    doubled = sorted(p for p, n in counts.items() if n > 1)
    lost = [p for p in range(total) if counts.get(p, 0) == 0 and p not in excused]
    strange = sorted(p for p in counts if not 0 <= p < total)
    for name, positions in (("applied twice", doubled), ("lost", lost), ("out of range", strange)):
        if positions:
            wrong.append(f"{len(positions)} samples {name}, the first at position {positions[0]}")
    committed, dead = summary.get("samples_committed", 0), summary.get("samples_dead_lettered", 0)
    if committed + dead != total:
        wrong.append(f"{committed} committed + {dead} dead-lettered is not {total}")
    if dead != len(excused):
        wrong.append(f"{dead} dead-lettered, {len(excused)} were to fail")
    return Verdict(state, tuple(wrong), summary)


def _excused(plan: Plan) -> set[int]:
    """Positions that must end as dead letters: bad rows, and every sample of a poison batch."""
    excused: set[int] = set()
    for epoch in range(plan.epochs):
        base = epoch * plan.records
        excused |= {base + position for position in plan.bad_rows}
        for batch in plan.poison:
            first = batch * plan.batch_size
            excused |= {base + p for p in range(first, min(first + plan.batch_size, plan.records))}
    return excused
