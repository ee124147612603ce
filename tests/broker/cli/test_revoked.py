"""`rover auth users | revoke` on a running stack: a command that follows ends with one line and exit code 5, as each later one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from outside import ROVER, rover

from rover_bus.cli.stack import RunningStack

PATIENCE_S = 120.0


@pytest.mark.broker
def test_a_command_with_revoked_credentials_ends_in_one_line(tmp_path: Path) -> None:
    home, file = tmp_path / ".rover", tmp_path / "viewer.creds"
    with RunningStack(home) as stack:
        for words in (("add", "ads"), ("credentials", "ads", "--role", "viewer", "--out", str(file))):
            done = rover("auth", *words, home=home)
            assert done.returncode == 0, done.stderr
        named = ("--url", stack.url, "--secret-file", str(file))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        following = subprocess.Popen(
            [*ROVER, "events", "--follow", *named],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert following.stdout is not None
            assert "host" in following.stdout.readline()  # it is there, and follows
            [user] = json.loads(rover("auth", "users", "-o", "json", home=home).stdout)
            assert (user["role"], user["of"], user["revoked"]) == ("viewer", "ads", "")
            done = rover("auth", "revoke", user["user"], home=home)
            assert done.returncode == 0, done.stderr
            _, said = following.communicate(timeout=PATIENCE_S)
        finally:
            following.kill()
            following.wait()
        assert following.returncode == 5, said
        [line] = [each for each in said.splitlines() if each]
        assert str(file) in line
        assert "revoked" in line
        assert rover("jobs", *named).returncode == 5
        [user] = json.loads(rover("auth", "users", "-o", "json", home=home).stdout)
        assert user["revoked"]
        assert rover("auth", "revoke", "UNOBODY", home=home).returncode == 2
