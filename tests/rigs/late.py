"""Servers that start late: the interpreter of each waits until a file exists, before anything of ours runs.

`Late(folder).environment(1)` goes into a job file. Only the first incarnation waits; `let(1)` lets it go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WAIT = """
import os, time
role, index = os.environ.get("ROVER_ROLE"), os.environ.get("ROVER_INDEX")
if role == "ps" and index in {indexes!r} and os.environ.get("ROVER_INCARNATION") == "1":
    while not os.path.exists(os.path.join({folder!r}, index)):
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Late:
    """What holds servers back, in a folder of its own."""

    folder: Path

    def environment(self, *indexes: int) -> str:
        """Return the line of a job file by which these servers wait."""
        self.folder.mkdir(exist_ok=True)
        text = WAIT.format(indexes=[str(index) for index in indexes], folder=str(self.folder))
        (self.folder / "sitecustomize.py").write_text(text)
        return f'environment = {{ PYTHONPATH = "{self.folder}" }}'

    def let(self, index: int) -> None:
        """Let a server start."""
        (self.folder / str(index)).touch()
