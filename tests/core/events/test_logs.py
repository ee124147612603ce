"""Service logs: readable, cheap to have."""

import logging
import subprocess
import sys

from rover_bus.events.logs import get_logger


def test_a_line_says_what_happened_and_what_belongs_to_it(caplog) -> None:
    caplog.set_level(logging.INFO, "rover")
    get_logger("rover.shell").info("leads", job="movielens", term=2)
    assert caplog.messages == ["leads job='movielens' term=2"]


def test_nothing_is_written_below_the_level_of_its_part(caplog) -> None:
    caplog.set_level(logging.WARNING, "rover")
    get_logger("rover.shell").debug("a sample is lost", why="no broker")
    assert caplog.messages == []


def test_services_start_without_what_only_people_look_at() -> None:
    script = (
        "import sys\n"
        "import rover_bus.cli.serve, rover_bus.master.service, rover_bus.brain.service, rover_bus.ps.service\n"
        "import rover_bus.node.service\n"
        "print(sorted({'rich', 'structlog', 'click', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
