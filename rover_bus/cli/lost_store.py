"""What is left of a stack whose broker's store is gone: the jobs that its directory has held, and how to go on from them.

Asked by `rover up` before it starts a broker. Runs of jobs leave logs and records below the state directory, and checkpoints on a
storage; what each job was stood in the store alone.
"""

from __future__ import annotations

from rover_bus.cli.home import Home
from rover_bus.events.subjects import job_of_file

MOST_NAMED = 8


def lost_jobs(home: Home) -> list[str]:
    """Return the jobs that ran here and of which no store knows any more; none where there is a store, or never was a job."""
    if any((home.broker / "store" / "jetstream").glob("*/streams/*")):
        return []
    runs = [*(home.node / "logs").glob("*.*"), *(home.node / "members").glob("*.*")]
    return sorted({job_of_file(run.name.rpartition(".")[0]) for run in runs})


def tell_lost(home: Home) -> list[str]:
    """Return what is to be said of them, a line each; nothing where nothing is lost."""
    jobs = lost_jobs(home)
    if not jobs:
        return []
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    return [
        f"lost     the broker's store in {home.broker}, and with it logs, facts and plans of {', '.join(jobs[:MOST_NAMED])}{more}",
        f"         With a backup: end this stack at once, then `rover restore BACKUP --dir {home.root}`.",
        "         Without one their checkpoints are left, on the storage that the job file names, else in",
        f"         {home.checkpoints}: `rover checkpoint list --storage STORAGE` lists them, and",
        "         `rover submit JOB.toml --from-checkpoint JOB` begins with the model of one, its data with the first epoch.",
    ]
