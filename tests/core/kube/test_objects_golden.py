"""Every script in golden/ of the decider of RoverJobs does what it says, line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from object_script import ObjectScript

SCRIPTS = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_object_follows_its_script(path: Path) -> None:
    script, written = ObjectScript(), path.read_text()
    replayed: list[str] = []
    for line in written.splitlines():
        if line.startswith("#") or not line.strip():
            replayed.append(line)
        elif line.startswith("> "):
            replayed += [line, *script.run(line[2:])]
    text = "\n".join(replayed) + "\n"
    if os.environ.get("ROVER_REWRITE_GOLDEN"):
        path.write_text(text)
    assert text == written, (
        "the decider no longer follows the script; ROVER_REWRITE_GOLDEN=1 writes it anew: read the diff"
    )
