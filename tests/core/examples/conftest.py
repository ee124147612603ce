"""The examples are programs: their folders are on the path only when they run, or here."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "dlrm")]
