"""Which hosts hold a copy of a part: the same answer on every daemon, without a word between them.

Fed with the hosts that are registered, their failure domains and the owner; feeds the persister's decider. Pure. Rendezvous
hashing: a host that comes or goes moves only the copies that are its own. Another failure domain goes before another host.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash


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
