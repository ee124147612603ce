"""How services of a stack ended, published as facts of its host once there is a bus: `host.service_ended`.

Fed by the supervisor's looks (supervisor.py, tended_broker.py), feeds FACTS. Daemons publish the same of members; only the
stack can do so for a daemon, and for the broker there is no bus until it is back. So a thread of its own tries until the fact is
stored, and nothing that mends a service waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.submission import publish_host
from rover_bus.events.errors import RoverError
from rover_bus.events.host_facts import HostServiceEnded
from rover_bus.events.identity import Exit

AGAIN_S = 0.5
LEAVE_S = 3.0
MOST_WAITING = 100  # of a service that ends again and again while there is no bus the last ones count


class Endings:
    """Tells the bus of one host's endings, from `start` to `stop`. What the bus did not take until then is on stderr alone."""

    def __init__(
        self, host: str, address: Callable[[], Address], on_error: Callable[[Exception], None]
    ) -> None:
        self._host, self._address, self._on_error = host, address, on_error
        self._waiting: deque[HostServiceEnded] = deque(maxlen=MOST_WAITING)
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._publish_all, name="rover-endings", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread:
            self._thread.join(LEAVE_S)
            self._thread = None

    def note(self, service: str, pid: int, exit: Exit, ran_s: float) -> None:
        """A service has ended; returns at once."""
        self._waiting.append(
            HostServiceEnded(host=self._host, service=service, pid=pid, exit=exit, ran_s=ran_s)  # type: ignore[arg-type]
        )
        self._wake.set()

    def _publish_all(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._stopped.is_set():
                fact = self._waiting[0]
                if not self._publish(fact):
                    self._stopped.wait(AGAIN_S)
                elif self._waiting[0] is fact:
                    self._waiting.popleft()

    def _publish(self, fact: HostServiceEnded) -> bool:
        try:
            visit(self._address(), lambda bus: publish_host(bus, fact, f"{fact.service}.{fact.pid}"))
        except RoverError:
            return False
        except Exception as error:  # noqa: BLE001 - what cannot be told must not end the telling of the others
            with suppress(OSError, ValueError):
                self._on_error(error)
        return True
