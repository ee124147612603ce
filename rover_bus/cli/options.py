"""Quotas as people write them: `ads=8:32GiB`, the jobs of tenant `ads` use 8 cores and 32 GiB together.

Read by serve.py, stack.py, `rover up` and `rover quota`; apart because an option passes through three processes as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rover_bus.events.errors import InputError
from rover_bus.events.units import parse_bytes

if TYPE_CHECKING:
    from rover_bus.brain.decisions.arbitration import Budget


def parse_quotas(words: Sequence[str], option: str = "--quota ") -> dict[str, Budget]:
    """Return the budget of each tenant. Memory left out is not limited. Raises InputError naming the word."""
    from rover_bus.brain.decisions.arbitration import Budget

    quotas: dict[str, Budget] = {}
    for word in words:
        tenant, given, size = word.partition("=")
        cores, _, memory = size.partition(":")
        try:
            if not tenant or not given or float(cores) < 0:
                raise ValueError
            bytes_ = parse_bytes(memory, f"{option}{word}") if memory else float("inf")
            quotas[tenant] = Budget(float(cores), bytes_)
        except ValueError:
            raise InputError(
                f"{option}{word}: write TENANT=CORES[:MEMORY], for example ads=8:32GiB"
            ) from None
    return quotas
