"""What bursts make of the cores of a container: one that is smaller than a burst stretches the burst, and nothing else.

Fed by the cores that members used on average and in their busiest tenths of a second (`profile.host.v1`); feeds `core_use`. Apart,
because a mean alone does not tell a member that is busy half of its time with twice the cores from one that is always busy.

    seconds(c) = free seconds * (1 + sum over roles of b * (max(P / c, 1) - 1))

P: cores that a burst uses which nothing holds back; b: share of an iteration that bursts take then. Of the time that was measured,
mean/peak is bursts. A tenth of a second is the period in which the kernel counts a container's limit: a peak below the limit was
never held back. One that met its limit in all that was seen may use any number of cores, so MORE times the most that it had are
assumed until it had more [ours; docs/design/0084].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.models.power_law import PowerLaw
from rover_bus.brain.models.samples import Configurations, FloatArray

# A burst that uses this share of its container's cores is held back by them.
PEAK_HELD_BACK = 0.9
MORE = 4.0
_MOST_OF_THE_TIME = 0.98  # all roles' bursts together: something is left that no core shortens
_LEAST_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class Bursts:
    """One role's: `cores` that a member uses in one, `share` of an iteration that they take, where nothing holds them back.

    `assumed`: they met their limit in all that was seen.
    """

    cores: PowerLaw
    share: PowerLaw
    assumed: bool

    def stretch(self, at: Configurations, given: FloatArray) -> FloatArray:
        """Return what containers of `given` cores add to an iteration (n,), as a share of a free one."""
        return np.asarray(self.shares(at) * (np.maximum(self.cores(at) / given, 1.0) - 1.0))

    def shares(self, at: Configurations) -> FloatArray:
        """Share of a free iteration that bursts take (n,)."""
        return np.clip(self.share(at), 0.0, _MOST_OF_THE_TIME)


@dataclass(frozen=True, eq=False)
class Burst:
    """What was measured of one role at n sizes: cores given, used on average, and used in bursts (0: not measured)."""

    given: FloatArray
    mean: FloatArray
    peak: FloatArray

    @property
    def known(self) -> NDArray[np.bool_]:
        """At which sizes (n,) both were measured."""
        return np.asarray((self.mean > 0) & (self.peak > 0))

    @property
    def unlimited(self) -> bool:
        """Whether no container limits this role, so that its use was not asked for."""
        return not self.mean.any()


def measure_bursts(at: Configurations, roles: Sequence[Burst]) -> list[Bursts | None]:
    """Return each role's bursts; None of an unlimited one, and of all where one is limited whose bursts were not measured."""
    if any(not role.unlimited and not role.known.any() for role in roles):
        return [None for _ in roles]
    laws = [None if role.unlimited else _cores(at, role) for role in roles]
    busy, longer = [], np.zeros(len(at))
    for role, law in zip(roles, laws, strict=True):
        share = np.where(role.known, role.mean / np.maximum(role.peak, 1e-9), 0.0)
        kept = np.ones(len(at)) if law is None else np.minimum(role.given / law(at), 1.0)
        busy.append((np.minimum(share, 1.0), kept))
    most = np.maximum(sum(share for share, _ in busy) / _MOST_OF_THE_TIME, 1.0)
    for share, kept in busy:
        longer += share / most * (1 - kept)
    return [
        None
        if law is None
        else Bursts(law, _shares(at, role, share / most * kept / (1 - longer)), not _free(role).any())
        for law, role, (share, kept) in zip(laws, roles, busy, strict=True)
    ]


def _cores(at: Configurations, role: Burst) -> PowerLaw:
    """Cores of a free burst: as measured where nothing held it back, else assumed."""
    free = _free(role)
    if free.any():
        return PowerLaw.of(at.take(free), role.peak[free])
    return PowerLaw.of(at, np.full(len(at), MORE * role.given[role.known].max()))


def _free(role: Burst) -> NDArray[np.bool_]:
    return role.known & (role.peak < PEAK_HELD_BACK * role.given)


def _shares(at: Configurations, role: Burst, share: FloatArray) -> PowerLaw:
    return PowerLaw.of(at.take(role.known), np.maximum(share[role.known], _LEAST_SHARE))
