"""What runs a role is the host's own to know: `python` is the daemon's interpreter, a server's command comes from the daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.events.identity import DesiredMember, Member
from rover_bus.node.port import Incarnation, RoleCommands, StartOrder

pytestmark = pytest.mark.chaos
Play = Callable[..., None]
SAYS_WHICH = "import sys; print(sys.executable)"


def test_python_is_the_interpreter_of_the_daemon_whatever_the_path_finds(play: Play, tmp_path: Path) -> None:
    foreign = tmp_path / "bin" / "python"
    foreign.parent.mkdir()
    foreign.write_text("#!/bin/sh\necho foreign\n")
    foreign.chmod(0o700)

    async def scene(rig: Any) -> None:
        run = rig.start("python", "-c", SAYS_WHICH, environment={"PATH": f"{foreign.parent}:/usr/bin:/bin"})
        assert (await rig.ended(run)).exit.reason == "completed"
        assert rig.log(run) == f"{sys.executable}\n"

    play(scene)


def test_a_server_is_started_by_its_own_host_not_by_a_path_of_the_master_s(play: Play) -> None:
    async def scene(rig: Any) -> None:
        desired = DesiredMember(
            member=Member("ps", 0, 1), host="h", command=["/another/host/python", "-m", "serve", "ps"]
        )
        run = Incarnation("demo", "u1", desired)
        rig.platform.start(StartOrder(run))
        assert (await rig.ended(run)).exit.reason == "completed"
        assert rig.log(run) == "served here\n"

    play(scene, commands=RoleCommands(server=(sys.executable, "-c", "print('served here')")))
