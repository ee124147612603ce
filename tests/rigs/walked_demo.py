"""`rover demo` whose facts are walked when its stack has stopped: those that do not say what led to them are its errors.

python tests/rigs/walked_demo.py --headless -o json --seed 5
"""

from __future__ import annotations

import sys

from walked import every_stack_walked

from rover_bus.cli.entry import main

if __name__ == "__main__":
    sys.argv[1:1] = ["demo"]
    with every_stack_walked() as offenders:
        code = main()
    sys.stderr.write("".join(f"{line}\n" for line in offenders))
    sys.exit(code or len(offenders))
