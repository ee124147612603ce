"""What every ring needs of the process that runs it."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell that runs something in the background has it ignore Ctrl-C, and so would all that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
