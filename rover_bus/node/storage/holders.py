"""Which hosts hold a copy of a part, which parts form a parity group, and which hosts hold its parity: the same on every daemon.

Fed with the hosts that are registered, their failure domains, and where the parts of a complete cut were staged; feeds the
persister's decider. Pure: daemons agree without a message between them. Rendezvous hashing, so a host that comes or goes moves
only the copies that are its own. No two parts of a group, and no parity block of it, lie in one failure domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

# -- copies --------------------------------------------------------------------------------------------------------------


def choose_holders(part: str, owner: str, domains: Mapping[str, str], copies: int) -> list[str]:
    """Return up to `copies` hosts, never the owner; those of other failure domains first, each domain once before any twice.

    `domains`: host -> failure domain, the owner's among them if it is known.
    """
    ranked = sorted(
        (host for host in domains if host != owner),
        key=lambda host: (xxhash.xxh3_64_intdigest(f"{part}@{owner}>{host}".encode()), host),
    )
    chosen: list[str] = []
    used = {domains.get(owner, owner)}
    while ranked and len(chosen) < copies:
        fresh = [host for host in ranked if domains[host] not in used]
        host = (fresh or ranked)[0]
        ranked.remove(host)
        used.add(domains[host])
        chosen.append(host)
    return chosen


# -- parity groups ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParityGroup:
    """`holders[i]` keeps parity block i of the parts, in this order. Fewer holders than asked for: there are no more hosts."""

    parts: tuple[str, ...]
    holders: tuple[str, ...]

    @property
    def name(self) -> str:
        """Distinguishes it from the other groups of its cut: a part is in one group."""
        return self.parts[0]


def choose_groups(owners: Mapping[str, str], domains: Mapping[str, str], parities: int) -> list[ParityGroup]:
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
        ParityGroup(tuple(group), tuple(_holders(group, owners, known, set(domains), parities)))
        for group in groups
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
