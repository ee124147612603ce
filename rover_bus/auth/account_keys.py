"""What opens the accounts of a broker, as their owner: the keys of a stack, or what the owner of another broker gave for one.

Used by `rover backup` and `rover restore`, which work on whole streams. Apart from the vault, because a broker that is not the
stack's own is known by one credential alone (docs/design/0082).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rover_bus.events.subjects import DEFAULT_TENANT


class AccountKeys(Protocol):
    """Implemented by the vault. `root`: where they lie; `tenants`: those beside `default`."""

    @property
    def root(self) -> Path: ...

    @property
    def tenants(self) -> Sequence[str]: ...

    def owner_credentials(self, tenant: str = DEFAULT_TENANT) -> str:
        """Return what may read and write the streams of an account."""


@dataclass(frozen=True, slots=True)
class OneAccount:
    """The account of a broker of another owner. `root`: the file of what he gave; it has the tenant `default` alone."""

    root: Path
    credential: str = field(repr=False)
    tenants: Sequence[str] = ()

    def owner_credentials(self, tenant: str = DEFAULT_TENANT) -> str:
        """Return what the owner gave, for his one account."""
        assert tenant == DEFAULT_TENANT
        return self.credential
