"""The programs that come with this package, by the name that a job file uses.

Used by the reader of job files (what runs) and by scoring.py (what predicts). They are files, not modules: examples to copy.
"""

from __future__ import annotations

import re
from pathlib import Path

from rover_bus.events.errors import InputError

BUILT_IN = {"dlrm": "dlrm/train.py"}
SCORING = {"dlrm": "dlrm/dlrm.py"}  # the file whose `predict(model, columns)` scores what the program trained

SCORER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # module:function


def find_example(relative: str) -> Path:
    """Find an example in the wheel, or beside the package in a checkout. Raises InputError."""
    package = Path(__file__).parents[1]
    for root in (package / "_examples", package.parent / "examples"):
        if (root / relative).is_file():
            return root / relative
    raise InputError(f"this installation lacks examples/{relative}: install rover-bus again")
