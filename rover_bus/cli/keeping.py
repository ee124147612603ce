"""How long logs are kept, as people write it: `7d:256MiB` is seven days or 256 MiB a log, the smaller. Read by serve.py, `up`."""

from __future__ import annotations

from rover_bus.client.units import parse_bytes, parse_seconds
from rover_bus.events.errors import InputError
from rover_bus.events.streams import KEEP_LOG, KeepLog


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
