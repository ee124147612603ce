"""The broker's disk of a stack of two machines is erased and restored while the other machine and a tenant's job live on."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from machines import JobOnMachines, Stacks, run_on
from namespaces import network, why_not
from patience import until

LACKS = why_not()
TENANT = "maps"
pytestmark = [pytest.mark.chaos, pytest.mark.skipif(bool(LACKS), reason=LACKS or "all is there")]


@dataclass(kw_only=True)
class JobOfTenant(JobOnMachines):
    """A job that one of the stack's tenants submits."""

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return super().rover(*words, "--tenant", TENANT)


def test_a_tenants_job_on_two_machines_goes_on_from_a_backup(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with network("one", "two") as net, ExitStack() as ends:
        one, stacks = net.machines["one"], Stacks(tmp_path, ends)
        up = ("up", "--host", "one", "--bind", one.address)
        stacks.start(one, "one", *up)
        home = stacks.home("one").root

        def said(*words: str) -> str:
            done = run_on(one, home, *words, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout

        said("auth", "add", TENANT)
        token = str(tmp_path / "token")
        said("auth", "token", "--out", token)
        stacks.start(net.machines["two"], "two", "join", "--token-file", token, "--name", "two")
        job = JobOfTenant(
            machine=one,
            folder=tmp_path,
            home=home,
            rows=30_000,
            epochs=2,
            workers=2,
            servers=2,
            checkpoint=f'every = "1s"\nkeep = 50\npath = "{tmp_path / "stored"}"',
        )
        job.submit()
        job.until(lambda: len(job.facts("checkpoint.ready")) > 1, "two checkpoints")
        used = {each["host"] for each in job.facts("members.desired")[-1]["members"]}
        assert used == {"one", "two"}
        said("backup", str(saved))

        def registered() -> list[str]:
            lines = said("events", "-k", "host.registered", "--json").splitlines()
            return [json.loads(line)["body"]["host"] for line in lines]

        before = registered().count("two")
        known = len(job.facts("checkpoint.ready"))
        job.until(lambda: len(job.facts("checkpoint.ready")) > known + 2, "checkpoints after the backup")
        erased = max(each["cut"] for each in job.facts("checkpoint.ready"))
        stacks.processes["one"].kill()
        stacks.processes["one"].wait()
        until(lambda: run_on(one, home, "jobs", cwd=tmp_path).returncode == 4, "its end")
        shutil.rmtree(home / "broker" / "store")
        assert f"goes on with {TENANT}/{job.name}" in said("restore", str(saved))
        stacks.start(one, "one", *up)
        job.until(lambda: job.facts("ledger.rewound"), "the way back")
        [back] = job.facts("ledger.rewound")
        assert "restored from a backup" in back["reason"]
        assert back["cut"] <= erased
        job.until(
            lambda: [
                each for each in job.facts("checkpoint.ready") if each["generation"] >= back["generation"]
            ],
            "a checkpoint of the new timeline",
        )
        job.until(lambda: registered().count("two") > before, "the other machine, in the new timeline")
        job.complete()
        assert [(each["job"], each["state"]) for each in json.loads(said("jobs", "-o", "json"))] == [
            (f"{TENANT}/{job.name}", "completed")
        ]
