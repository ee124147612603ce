"""Every script in golden/ does what it says, line by line."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted((HERE / "golden").glob("*.txt")), ids=lambda path: path.stem)
def test_the_master_follows_its_script(scripts: ModuleType, path: Path) -> None:
    script = scripts.Script()
    written = path.read_text()
    replayed: list[str] = []
    for line in written.splitlines():
        if line.startswith("#") or not line.strip():
            replayed.append(line)
        elif line.startswith("> "):
            replayed.append(line)
            said = script.run(line[2:])
            replayed += [said] if said else []
    script.assert_replayed()
    text = "\n".join(replayed) + "\n"
    if os.environ.get("ROVER_REWRITE_GOLDEN"):
        path.write_text(text)
    assert text == written, (
        "the decider no longer follows the script; ROVER_REWRITE_GOLDEN=1 writes it anew: read the diff"
    )
