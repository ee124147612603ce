"""Memory that ends between any two lines, or any two bytecodes, of what a server runs: `sys.settrace` raises MemoryError there."""

from __future__ import annotations

import sys

from rover_bus.ps import core


class MemoryEnds:
    """While entered: raises MemoryError before the step of this number (-1: never), and counts the steps."""

    def __init__(self, at_step, unit="line"):
        self.at_step, self.unit, self.taken = at_step, unit, 0
        self.folder = core.__file__.rpartition("/")[0]

    def trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        frame.f_trace_opcodes = self.unit == "opcode"
        if event == self.unit:
            self.taken += 1
            if self.taken == self.at_step:
                raise MemoryError
        return self.trace

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)
