"""A process as a pod runs it: another user without capabilities, on a root that takes no write, with one folder that does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

USER = 65532
SETUP = """
set -e
mount --make-rprivate /
mount --bind "$STATE" "$STATE"
if [ -n "$CLOSED" ]; then
  mkdir -p "$STATE/.python"
  mount --bind "$PYTHON" "$STATE/.python"
  mount -t tmpfs -o mode=755 tmpfs "$CLOSED"
  mkdir -p "$PYTHON"
  mount --bind "$STATE/.python" "$PYTHON"
fi
mount -o remount,bind,ro /
exec setpriv --reuid="$USER_ID" --regid="$USER_ID" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""


def check() -> None:
    """Skip where this machine lets nobody make such a process."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        pytest.skip("no process of another user on a read-only root: it needs root, unshare and setpriv")
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespaces here: {tried.stderr.decode().strip()}")


def closed_above(path: Path) -> Path | None:
    """Return the outermost directory on the way to a path that others may not enter, as a home is."""
    way = [each for each in reversed(path.parents) if not each.stat().st_mode & 0o001]
    return way[0] if way else None


def started(words: Sequence[str], state: Path, **more: Any) -> subprocess.Popen[str]:
    """Start it; `state` is the folder that it may write to, and its home. The interpreter may lie in a closed directory."""
    python = Path(sys.base_prefix)
    variables = {
        "USER_ID": str(USER),
        "STATE": str(state),
        "PYTHON": str(python),
        "CLOSED": str(closed_above(python) or ""),
    }
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", SETUP, "sh", *words],
        env={"PATH": os.environ["PATH"], "HOME": str(state), "PYTHONDONTWRITEBYTECODE": "1", **variables},
        cwd="/",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )
