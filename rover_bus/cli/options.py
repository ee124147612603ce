"""Options as people write them: quotas (`ads=8:32GiB`: the jobs of tenant `ads` use 8 cores and 32 GiB together), and how long logs
are kept (`7d:256MiB`: seven days or 256 MiB a log, the smaller).

Read by serve.py, stack.py, `rover up` and `rover quota`; apart because an option passes through three processes as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rover_bus.client.units import parse_bytes, parse_seconds
from rover_bus.events.errors import InputError
from rover_bus.events.streams import KEEP_LOG, KeepLog

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


def parse_keep_log(word: str) -> KeepLog:
    """Return what is kept; without a size the default one. Raises InputError naming the word."""
    age, _, size = word.partition(":")
    try:
        age_s = parse_seconds(age, "--keep-log")
        return KeepLog(age_s=age_s, bytes=parse_bytes(size, "--keep-log") if size else KEEP_LOG.bytes)
    except InputError as error:
        raise InputError(f"--keep-log {word}: write AGE[:SIZE], for example 7d:256MiB ({error})") from None


def write_keep_log(keep: KeepLog) -> str:
    """Return the word for it, as `parse_keep_log` reads it."""
    return f"{keep.age_s:.0f}s:{keep.bytes}B"
