"""Programs whose wall clock is another than this machine's, by a library that is loaded before all others.

Needs a C compiler; `why_not` says so. Not Debian's faketime (0.9.10): with the monotonic clock as it is `time.sleep` ends with
EINVAL, and with that faked as well a lock's time-out is minutes late. What goes by the monotonic clock is left alone here.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) { const char *said = getenv("CLOCK_AHEAD_S"); return said ? atol(said) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && now) now->tv_sec += ahead();
    return failed;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
"""


def why_not() -> str:
    """Return what this system lacks for another clock, "" where one can be had."""
    return "" if shutil.which("cc") else "another clock needs a C compiler (cc)"


def by_another_clock(folder: Path, ahead_s: int) -> list[str]:
    """Return what runs a command, and all that it starts, by a clock that is so far ahead."""
    library = folder / "clock.so"
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=SOURCE, text=True, check=True)
    return ["env", f"LD_PRELOAD={library}", f"CLOCK_AHEAD_S={ahead_s}"]
