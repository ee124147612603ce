"""What members use where the kernel's controllers `cpu` and `cpuacct` are mounted apart: their group counts no seconds itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rover_bus.node.local.cores import CoreGroups


def test_seconds_are_those_of_the_groups_processes(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    procs = tmp_path / "m" / "cgroup.procs"
    groups = CoreGroups(tmp_path, 1)
    assert groups.used_s("m") is None
    procs.write_text("")
    assert groups.used_s("m") is None, "nothing runs there"
    procs.write_text(f"{os.getpid()}\n1073741824\n")
    used_s = groups.used_s("m")
    assert used_s is not None
    assert abs(used_s - time.process_time()) < 0.1
    (tmp_path / "m" / "cpuacct.usage").write_text("1500000000\n")
    assert groups.used_s("m") == 1.5
