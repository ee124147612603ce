"""How much tenants may store: a file of the vault, `limits`, from which the claims of their accounts are made.

Written by `rover auth add --store` and `rover kube prepare --tenant`; the broker enforces it, and sets a limit aside whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rover_bus.auth.secret_files import write_secret
from rover_bus.events.errors import InputError
from rover_bus.events.streams import STREAMS

LEAST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Those of one vault."""

    root: Path

    @property
    def all(self) -> dict[str, int]:
        """Bytes by tenant, of those that have a limit."""
        try:
            return dict(json.loads((self.root / "limits").read_text()))
        except OSError:
            return {}

    def note(self, tenants: Iterable[str], most_bytes: int) -> None:
        """Let each of these tenants store so much at most; 0: as much as the broker has."""
        limits = {**self.all, **dict.fromkeys(tenants, most_bytes)}
        write_secret(self.root / "limits", json.dumps({key: value for key, value in limits.items() if value}))


def check_limits(
    limits: Mapping[str, int], tenants: Collection[str], asked: Collection[str], store_bytes: int, option: str
) -> None:
    """Raise InputError, naming the option, for limits of the tenants `asked` that a broker of this store cannot set aside.

    `limits`: of all `tenants` that have one; `store_bytes`: 0 where it is not known.
    """
    wanted = [each for each in asked if limits.get(each)]
    if any(limits[each] < LEAST_BYTES for each in wanted):
        raise InputError(f"{option}: the streams of a tenant need at least 4MiB")
    unlimited = 1 + sum(not limits.get(each) for each in tenants)  # with the control account
    # Twice: the control account's copy of a tenant's facts grows as they do.
    reserved = 2 * sum(limits.values()) + unlimited * sum(each.max_bytes for each in STREAMS)
    if wanted and 0 < store_bytes < reserved:
        left = max(store_bytes - reserved + 2 * sum(limits[each] for each in wanted), 0) // (2 * len(wanted))
        raise InputError(
            f"{option}: the broker stores {store_bytes >> 20} MiB and sets a limit aside, twice because facts are copied: "
            f"{left >> 20} MiB for each are left"
        )
