"""The Brain beside real jobs on this machine: a real stack, real members, and what becomes of them.

    python -m bench.living growth|falls|straggler|cores|spares|late|first|servers|memory|no-relief|away|priority
                           [--seconds N] [--json]

growth     an input-bound job (120 ms of storage latency a batch: four workers need half a core) starts with one worker: probes, a
           plan, its verdict
falls      the same; when the scale-up is live the server is throttled: the change is taken back, in how many windows (S16)
straggler  one of two workers is slowed five times by a SIGSTOP duty cycle: how long until it is found, and its share after (S18)
cores      workers use up their cores: they get more, without a restart
spares     a worker is added to a job whose program takes 2 s to load: from plan to its first commit, without spares and with them
late       one of three workers starts 20 s late: on how many measured sizes the next plan rests
first      of three servers one starts 15 s late and one 30 s: from submission to the first commit, where the job waits for all of
           them and where the first one begins; five pairs
servers    a program keeps its only server busy, and the job file leaves their number open: two are tried and judged
memory     a table grows under a memory limit: incidents, limits, kills (S10); `no-relief` is the same job with relief off
away       the Brain is killed for a while: lease rate and waits before, meanwhile and after; where the next plan resumed (S26)
priority   a job of higher priority comes and goes: the first one's workers leave for it, and are back

Prints what happened, and with --json one last line. Everything is seen from outside: facts, samples, the job's log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from bench.living.plays import PLAYS, Play


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.living", description=__doc__)
    parser.add_argument("play", choices=list(PLAYS))
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    play, usual = PLAYS[options.play]
    result = asyncio.run(_run(play, options.seconds or usual))
    for key, value in result.items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        for row in rows or []:
            print("  ".join(f"{name} {item}" for name, item in row.items()))
        if rows is None:
            print(f"{key:24} {value}")
    if options.json:
        print(json.dumps({"play": options.play, **result}))


async def _run(play: Play, seconds: float) -> dict[str, Any]:
    return await play(seconds)


if __name__ == "__main__":
    main()
