"""`rover demo --act servers`: what it shows happens, every sample counts once, and nothing is left, also when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import PATIENCE_S

from rover_bus.flash.places import host_root

pytestmark = pytest.mark.chaos
PLAYS = 4
COMMAND = [sys.executable, "-m", "rover_bus.cli.entry", "demo", "--act", "servers", "--headless", "--json"]


def play(directory: Path) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    return subprocess.Popen(
        [*COMMAND, "--seed", "2"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"TMPDIR": str(directory)},
        start_new_session=True,
    )


def whole_play(directory: Path) -> tuple[dict[str, Any], str]:
    """Return the report of a play that left no act out, and in which the machine was quiet enough to see what a slow server costs.

    On a busy machine an act may come too late, which the play says, and two speeds of 2.5 s each may be the machine's: then it is
    played again. What it counts must be right each time.
    """
    for _ in range(PLAYS):
        with play(directory) as process:
            out, told = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, told
        report = json.loads(out.splitlines()[-1])
        assert (report["state"], report["samples_duplicated"]) == ("completed", 0), told
        assert report["samples_committed"] + report["samples_dead_lettered"] == report["samples_total"]
        if not report["left_out"] and costs(report):
            break
    return report, told


def costs(report: dict[str, Any]) -> bool:
    """Whether training was slower while a server was hot."""
    before, hot, _ = report["relief"]["samples_per_second"]
    return bool(hot < before)


def assert_nothing_is_left(directory: Path, memory: list[Path]) -> None:
    words = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in words if str(directory) in line] == []
    assert list(directory.iterdir()) == []
    assert [path for path in memory if path.exists()] == []


def test_a_server_a_hot_server_and_a_host_are_survived_and_every_sample_counts_once(tmp_path: Path) -> None:
    report, told = whole_play(tmp_path)
    assert report["left_out"] == {}, told
    assert report["hosts_lost"] == 1
    assert report["servers_lost"] >= 2
    sources = [restore["source"] for restore in report["restores"]]
    assert sources[0] == "memory"
    assert "peer" in sources[1:]
    assert costs(report), report["relief"]
    assert report["relief"]["moved_bytes"] > 0
    assert_nothing_is_left(tmp_path, [])


def test_an_interrupted_act_leaves_nothing_behind(tmp_path: Path) -> None:
    with play(tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "KILL" in line:
                break
        [root] = tmp_path.glob("rover-demo-*")
        memory = [host_root(root / host / "node") for host in ("a", "b")]
        assert all(path.exists() for path in memory)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert_nothing_is_left(tmp_path, memory)
