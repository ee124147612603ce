"""Which parts form a parity group, and which hosts hold its parity: the same answer on every daemon, without a word between them.

Fed with the parts of a complete cut, where each was staged, and with the hosts that are registered; feeds the persister's decider.
Pure. No two parts of a group, and no parity block of it, lie in one failure domain: what fails together takes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rover_bus.node.holders import choose_holders


@dataclass(frozen=True, slots=True)
class Group:
    """`holders[i]` keeps parity block i of the parts, in this order. Fewer holders than asked for: there are no more hosts."""

    parts: tuple[str, ...]
    holders: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tells it from the other groups of its cut: a part is in one group."""
        return self.parts[0]


def choose_groups(owners: Mapping[str, str], domains: Mapping[str, str], parities: int) -> list[Group]:
    """Divide the parts (part -> host) into groups as large as the domains allow: with d of them, up to d - parities parts each."""
    if not parities:
        return []
    known = {host: domains.get(host, host) for host in {*domains, *owners.values()}}
    most = max(1, len(set(known.values())) - parities)
    groups: list[dict[str, str]] = []  # part -> domain
    for part in sorted(owners):
        domain = known[owners[part]]
        fitting = [group for group in groups if len(group) < most and domain not in group.values()]
        if not fitting:
            groups.append({})
        (fitting or groups[-1:])[0][part] = domain
    return [
        Group(tuple(group), tuple(_holders(group, owners, known, set(domains), parities))) for group in groups
    ]


def _holders(
    group: Mapping[str, str],
    owners: Mapping[str, str],
    known: Mapping[str, str],
    present: set[str],
    parities: int,
) -> list[str]:
    first = next(iter(group))
    free = {
        host: domain for host, domain in known.items() if host in present and domain not in group.values()
    }
    chosen = choose_holders(f"parity of {first}", owners[first], free, parities)
    used: set[str] = set()
    return [host for host in chosen if not (free[host] in used or used.add(free[host]))]  # type: ignore[func-returns-value]
