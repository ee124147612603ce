"""One trial of a program by a process of its own: `python -m rover_bus.node.local.lone_trial`, where the member would run.

Run in a pod of the member's image (kube/trials.py), which no daemon looks into. The question comes in ROVER_TRIAL, as JSON; the
answer goes to the file in ROVER_TRIAL_ANSWER, which the platform reads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from rover_bus.events.programs import STARTS, ProgramReply, ProgramRequest
from rover_bus.node.local.trials import Children, import_client, prepare

QUESTION, ANSWER = "ROVER_TRIAL", "ROVER_TRIAL_ANSWER"


def answer(request: ProgramRequest) -> ProgramReply:
    """Say whether a member with this program would start here."""
    environment = {**os.environ, **request.environment}
    command = prepare(request, environment, sys.executable)
    if isinstance(command, ProgramReply):
        return command
    return import_client(command, request.directory, environment, Children()) if command else STARTS


def main() -> None:
    reply = answer(msgspec.json.decode(os.environ[QUESTION], type=ProgramRequest))
    Path(os.environ[ANSWER]).write_bytes(msgspec.json.encode(reply))


if __name__ == "__main__":
    main()
