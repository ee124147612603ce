"""How a member ends: within which time, and in which words of `identity.ExitReason`. Pure.

Said by every platform of its members (the shim's wait status, a simulated member's exit code), read by masters (poison, P19). Whose
doing an end was is what counts: a fault of the program is charged to its data, a kill from outside is not. Apart, because the shim
imports it: standard library's cheap part only.
"""

from __future__ import annotations

HURRY_S = 1.0  # of grace for a member that was lost: its successor waits, and its messages are refused
STUCK_S = 3.0  # after the grace: then the platform ends what does not end itself

# Signals that a program raises against itself: ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS.
CRASHES = frozenset({4, 5, 6, 7, 8, 11, 31})
SIGTERM, SIGKILL = 15, 9

Ending = tuple[str, "int | None", "int | None", str]  # reason, status, signal, detail


def classify(code: int, *, asked: str = "", killed: str = "", kernel_oom: bool = False) -> Ending:
    """Name an ending.

    code: as `os.waitstatus_to_exitcode` gives it (negative: a signal). asked: why the member was asked to leave, "" when it
    was not. killed: why the platform itself killed it ("out_of_memory: ..." or "grace: ..."), "" when it did not.
    kernel_oom: the kernel's out-of-memory killer was at work lately.
    """
    status, signal = (code, None) if code >= 0 else (None, -code)
    if killed.startswith("out_of_memory"):
        return "out_of_memory", status, signal, killed.partition(": ")[2]
    if killed:
        return "killed", status, signal, killed.partition(": ")[2]
    if signal in CRASHES:
        return "crashed", status, signal, asked
    if signal == SIGKILL:
        return ("out_of_memory" if kernel_oom else "killed"), status, signal, "kernel" if kernel_oom else ""
    if asked:
        return "drained", status, signal, asked
    if signal is not None or code - 128 == SIGTERM:
        return "killed", status, signal, ""
    return ("failed" if code else "completed"), status, None, ""
