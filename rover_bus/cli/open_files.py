"""How many files a process of ours may open at once, looked at before it starts anything that would fail later and less clearly.

Fed by the kernel's limits of this process (`ulimit -n`); called by `rover up`, by services that are started alone, by `rover run`.
"""

from __future__ import annotations

import resource

from rover_bus.events.errors import InputError

# A server of a job with two workers holds 29, a daemon with five members 22, the broker 20 and one for every member.
LEAST_FILES, MOST_FILES = 256, 65_536


def check_open_files(program: str, *, most: int = MOST_FILES) -> None:
    """Let this process and its children open as many files as the machine allows, at most `most`.

    Raises InputError, naming the number that would do, where these are too few for `program`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        raise InputError(
            f"only {hard} files may be open at once, and {program} needs {LEAST_FILES}: raise it (`ulimit -n {LEAST_FILES}`)"
        )
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
