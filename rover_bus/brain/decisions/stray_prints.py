"""What C code prints while a solver runs goes to stderr: a program that embeds the Brain may speak a protocol on stdout.

HiGHS, as scipy brings it, prints a line of its own now and then that no option silences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def c_prints_on_stderr() -> Iterator[None]:
    """Let C's `stdout` be its `stderr` meanwhile. File descriptor 1, what Python prints and what children inherit stay the same.

    Only glibc says that `stdout` may be set; with another C library nothing is done. Of two threads the one that comes second
    changes nothing, so that neither leaves it changed: what it prints after the first is done is on stdout again.
    """
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        yield
        return
    stdout, stderr = (ctypes.c_void_p.in_dll(process, name) for name in ("stdout", "stderr"))
    before = stdout.value
    if before == stderr.value:
        yield
        return
    stdout.value = stderr.value
    try:
        yield
    finally:
        stdout.value = before
