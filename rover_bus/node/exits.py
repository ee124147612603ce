"""How a member ended, in the words of `identity.ExitReason`. Pure; fed by the shim's wait status, read by masters (poison, P19).

What counts is whose doing it was: a fault of the program is charged to its data, a kill from outside is not.
"""

from __future__ import annotations

# Signals that a program raises against itself: ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS.
CRASHES = frozenset({4, 5, 6, 7, 8, 11, 31})
SIGTERM, SIGKILL = 15, 9

Ending = tuple[str, "int | None", "int | None", str]  # reason, status, signal, detail


def classify(code: int, *, told: str = "", killed: str = "", kernel_oom: bool = False) -> Ending:
    """Name an ending.

    code: as `os.waitstatus_to_exitcode` gives it (negative: a signal). told: why the member was asked to leave, "" when it
    was not. killed: why the shim itself killed the group ("out_of_memory: ..." or "grace: ..."), "" when it did not.
    kernel_oom: the kernel's out-of-memory killer was at work lately.
    """
    status, signal = (code, None) if code >= 0 else (None, -code)
    if killed.startswith("out_of_memory"):
        return "out_of_memory", status, signal, killed.partition(": ")[2]
    if killed:
        return "killed", status, signal, killed.partition(": ")[2]
    if signal in CRASHES:
        return "crashed", status, signal, told
    if signal == SIGKILL:
        return ("out_of_memory" if kernel_oom else "killed"), status, signal, "kernel" if kernel_oom else ""
    if told:
        return "drained", status, signal, told
    if signal is not None or code - 128 == SIGTERM:
        return "killed", status, signal, ""
    return ("failed" if code else "completed"), status, None, ""
