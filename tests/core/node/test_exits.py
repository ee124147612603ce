"""Exit reasons: whose doing an end was."""

import pytest

from rover_bus.events.identity import FAULTS_OF_THE_PROGRAM, ExitReason
from rover_bus.node.exits import classify

OURS = "asked to leave"


@pytest.mark.parametrize(
    ("code", "asked", "killed", "reason", "status", "signal"),
    [
        (0, "", "", "completed", 0, None),
        (3, "", "", "failed", 3, None),
        (-11, "", "", "crashed", None, 11),
        (-6, "", "", "crashed", None, 6),
        (-9, "", "", "killed", None, 9),
        (-15, "", "", "killed", None, 15),
        (143, "", "", "killed", 143, None),
        (-1, "", "", "killed", None, 1),
        (0, OURS, "", "drained", 0, None),
        (-15, OURS, "", "drained", None, 15),
        (143, OURS, "", "drained", 143, None),
        (1, OURS, "", "drained", 1, None),
        (-11, OURS, "", "crashed", None, 11),
        (-9, OURS, "", "killed", None, 9),
        (-9, OURS, "grace: did not leave within 5 s", "killed", None, 9),
        (-9, "", "out_of_memory: 3 bytes of 2 allowed", "out_of_memory", None, 9),
        (-9, OURS, "out_of_memory: 3 bytes of 2 allowed", "out_of_memory", None, 9),
    ],
)
def test_an_end_is_named_after_whose_doing_it_was(
    code: int, asked: str, killed: str, reason: ExitReason, status: int | None, signal: int | None
) -> None:
    assert classify(code, asked=asked, killed=killed)[:3] == (reason, status, signal)


def test_a_sigkill_while_the_kernel_was_out_of_memory_is_out_of_memory() -> None:
    assert classify(-9, kernel_oom=True)[0] == "out_of_memory"
    assert classify(1, kernel_oom=True)[0] == "failed"


@pytest.mark.parametrize("code", [*range(-64, 0), 0, 143])
def test_no_kill_from_outside_is_ever_a_fault_of_the_program(code: int) -> None:
    crashes = {-4, -5, -6, -7, -8, -11, -31}
    assert (classify(code)[0] in FAULTS_OF_THE_PROGRAM) == (code in crashes)


def test_what_the_shim_did_is_said_in_the_detail() -> None:
    assert classify(-9, killed="grace: did not leave within 5 s")[3] == "did not leave within 5 s"
    assert classify(0, asked="no daemon for 5 s")[3] == "no daemon for 5 s"
