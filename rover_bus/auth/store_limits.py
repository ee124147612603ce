"""How much tenants may store: a file of the vault, `limits`, from which the claims of their accounts are made.

Written by `rover auth add --store`; the broker enforces it, and sets a limit aside whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rover_bus.auth.secret_files import write_secret


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
