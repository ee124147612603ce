"""A training program without a stack of ours: its environment, and a job file trained in one process.

Fed by a job's spec; used by `rover run`, by the demo's reference (demo/beside.py) and by bench/quality.py, whose figures must be
those of `rover run --plain`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rover_bus.events.errors import PermanentError

if TYPE_CHECKING:
    from rover_bus.cli.connection import Address
    from rover_bus.events.job import JobSpec

MEMBER_VARIABLES = ("ROVER_JOB", "ROVER_ROLE", "ROVER_INDEX", "ROVER_INCARNATION", "ROVER_CREDENTIAL")
EXTERNAL_HOST = "external"  # of a worker that no daemon started


class ProgramFailed(PermanentError):
    """The training program ended with a status of its own."""

    code = "program_failed"
    exit_code = 10


def alone_or_joined(job: str, directory: str, tenant: str = "") -> dict[str, str]:
    """Return the environment of a wrapped program: no member of anything, or an external worker of a job, of a tenant."""
    environment = {key: value for key, value in os.environ.items() if key not in MEMBER_VARIABLES}
    if not job:
        environment.pop("ROVER_URL", None)
        return environment
    from rover_bus.cli.connection import find_stack
    from rover_bus.events.subjects import name

    stack = find_stack(directory, "", "", tenant)
    named = {"ROVER_JOB": name(job, "job"), "ROVER_URL": stack.url}
    return environment | named | _credentials_of_external(stack, job)


def _credentials_of_external(stack: Address, job: str) -> dict[str, str]:
    """Return what an external worker shows itself by: credentials of its own, where the keys of the stack are at hand."""
    from rover_bus.auth.vault import Vault
    from rover_bus.cli.connection import visit
    from rover_bus.events.facts import JobSubmitted
    from rover_bus.events.looks import last_fact
    from rover_bus.events.subjects import job_fact

    vault = Vault.beside(stack.secret_file) if stack.secret_file else None
    if vault is None:
        _refuse_people(stack)
        return {"ROVER_SECRET_FILE": str(stack.secret_file or "")}
    subject = job_fact(job, JobSubmitted.kind())
    fact = visit(stack, lambda bus: last_fact(bus, subject, JobSubmitted))
    uid = fact.uid if fact is not None else ""  # of a job that was never submitted its master says so
    full = stack.full_name(job)
    return {
        "ROVER_CREDENTIAL": vault.member_credentials("worker", full, uid, "worker-external", EXTERNAL_HOST)
    }


def _refuse_people(stack: Address) -> None:
    """Raise AccessDenied for credentials of a tenant's person: a worker is another user, which the stack's keys alone make."""
    from rover_bus.events import credentials
    from rover_bus.events.errors import AccessDenied

    shown = credentials.read(credentials.read_file(stack.secret_file)) if stack.secret_file else None
    if stack.tenant or (shown is not None and shown.tenant):
        raise AccessDenied(
            "a worker's credentials are made where the keys of the stack are: run `rover run --job` on a host of it"
        )


def run_plain_file(
    job_file: Path, *, seed: int | None = None, predictions: Path | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Train a job file in one process and return its report, with the keys of `rover submit -o json`."""
    from rover_bus.client.job_file import check_data, read_job

    spec = read_job(job_file, seed=seed, predictions=predictions or "")
    check_data(spec)
    return run_plain(spec, quiet=quiet)


def run_plain(spec: JobSpec, *, quiet: bool) -> dict[str, Any]:
    """Run a job's program standalone. Raises ProgramFailed naming its command when it fails. `quiet`: its output goes to stderr."""
    import msgspec

    from rover_bus.client.job_file import program_here

    command = program_here(spec)
    with tempfile.TemporaryDirectory(prefix="rover-plain-") as directory:
        spec_file, summary_file = Path(directory, "spec.json"), Path(directory, "summary.json")
        spec_file.write_bytes(msgspec.json.encode(spec))
        files = {"ROVER_SPEC_FILE": str(spec_file), "ROVER_SUMMARY_FILE": str(summary_file)}
        began_s = time.monotonic()
        status = _call(command, spec.directory, alone_or_joined("", "") | spec.environment | files, quiet)
        wall_s = time.monotonic() - began_s
        if status != 0:
            raise ProgramFailed(f"{shlex.join(spec.program)} {_ended(status)}: what it wrote stands above")
        if not summary_file.exists():
            raise ProgramFailed(
                f"{shlex.join(spec.program)} never called rover_bus.client.join(): nothing is known of its run"
            )
        return sum_up_plain(spec.name, json.loads(summary_file.read_bytes()), wall_s)


def _call(command: list[str], directory: str, environment: Mapping[str, str], quiet: bool) -> int:
    with subprocess.Popen(
        command, cwd=directory or None, env=dict(environment), stdout=2 if quiet else None
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it got the signal too, and drains
            return process.wait()


def _ended(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


def sum_up_plain(job: str, summary: dict[str, Any], wall_s: float) -> dict[str, Any]:
    """Return the report of a run in one process, with the keys of any other job's."""
    from rover_bus.cli.views.report import Tally, sum_up
    from rover_bus.events.facts import JobEnded

    ended = JobEnded(job=job, state=summary["state"], summary=summary)
    report = sum_up(job, ended, Tally(), wall_s=wall_s)
    return report | {"samples_duplicated": summary.get("samples_duplicated"), "staleness_batches": 0.0}
