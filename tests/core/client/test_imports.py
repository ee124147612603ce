"""What a training script pays for importing the library."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_library_imports_none_of_the_heavy_packages() -> None:
    program = (
        "import sys, rover_bus.client\n"
        "heavy = {'nats', 'scipy', 'psutil', 'rich', 'click', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
