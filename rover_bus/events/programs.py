"""Whether a job's program starts on a host: the question, and what a platform answers (docs/design/0032).

Asked by `rover submit` on `rover.daemon.<host>.program`, and by the daemon itself before a worker is started; answered by the
platform that would start it, which alone knows interpreter, environment, user and directory. The program itself is never run.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OWN_PYTHON = (
    "python"  # as first word: the interpreter that the platform itself runs under, whatever a PATH finds
)
TRY_S = 20.0  # what one trial may take on its host; longer says nothing of the program


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="program_asked.v1"):
    """Would this worker's command line start there, in this directory and with these variables on top of the host's own?

    `reads`: files of the job that must be there, too.
    """

    program: list[str]
    directory: str = ""
    environment: dict[str, str] = {}
    reads: list[str] = []


class ProgramReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="program_tried.v1"):
    """`refused`: it cannot start; `path` is what is missing or fails, `problem` why, in one line. `unknown`: no trial ended."""

    state: Literal["starts", "refused", "unknown"]
    path: str = ""
    problem: str = ""


STARTS = ProgramReply(state="starts")
