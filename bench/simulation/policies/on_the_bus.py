"""A policy behind the simulated bus: it lives in a service of its own and meets the engine through messages only.

Fed by the engine through `port`, like every policy; each call travels as msgpack over `events.memory_bus` in the virtual time of
`events.virtual_time`, windows as one-way samples, everything that wants an answer as a request. What crosses is what a live Brain
could know: the hidden half of a `Case` (truth, needs) stays with the engine, so a policy that peeks fails. This is also the seam
for the live Brain service: it takes the service's place when it speaks these subjects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from bench.simulation.port import (
    Case,
    ClusterView,
    JobView,
    Policy,
    Remedy,
    Setting,
    Size,
    Wanted,
    Window,
)
from rover_bus.events.bus import Message
from rover_bus.events.errors import BusTimeout
from rover_bus.events.memory_bus import MemoryBroker, MemoryBus
from rover_bus.events.virtual_time import VirtualTimeLoop

_ASK_S = 60.0
_SUBJECT = "rover.rpc.simbench"
_WINDOWS = "rover.profile.simbench.worker.0"
_HIDDEN = ("truth", "seed", "speed", "worker_gib", "server_gib", "tables_gib", "law", "input_per_s", "kill")
_VISIBLE = tuple(name for name in Case.__dataclass_fields__ if name not in _HIDDEN)


class _Hidden:
    """Stands where the truth stood."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: a policy behind the bus cannot know the truth")

    __float__ = __mul__ = __add__ = lambda self, *_: self.__getattr__("hidden")


class OnTheBus:
    """Any policy of `make`, behind a bus. `close()` when done; `messages` counts what went over it."""

    def __init__(self, setting: Setting, make: Callable[[Setting], Policy]) -> None:
        self.loop = VirtualTimeLoop()
        self.service = _Service(make(setting))
        policy = self.service.policy
        self.name, self.round_s = f"{policy.name}, over the bus", policy.round_s
        self.mechanisms = policy.mechanisms
        self.messages = 0
        self.failures: list[BaseException] = []
        self.loop.set_exception_handler(self._failed)
        self._bus: MemoryBus = self.loop.run_until_complete(self._connect())

    @property
    def probing(self) -> frozenset[str]:
        """Which jobs hold a size that was chosen to learn from."""
        return getattr(self.service.policy, "probing", frozenset())

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[Wanted]:
        """Ask for a round."""
        body = [
            [_visible(job) for job in cluster.jobs],
            [
                cluster.cores,
                cluster.gib,
                cluster.free_cores,
                cluster.free_gib,
                cluster.largest_gib,
                cluster.hosts,
            ],
            now_s,
            regular,
        ]
        return [
            Wanted(name, Size(*size), *map(tuple, hosts)) for name, size, *hosts in self._ask("plan", body)
        ]

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Publish samples, one message each, then ask what cannot wait for a round."""
        for window in windows:
            self._publish(_packed(window))
        return [Remedy(*remedy) for remedy in self._ask("remedies", None)]

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """Tell a loss and ask what shall be."""
        size = self._ask("lost", [_visible(job), workers, servers])
        return None if size is None else Size(*size)

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Tell that a job ended."""
        self._ask("ended", [_visible(job), now_s, completed])

    def close(self) -> None:
        """Leave the bus and end its time."""
        self.loop.run_until_complete(self._bus.close())
        self.loop.close()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or RuntimeError(context["message"]))

    async def _connect(self) -> MemoryBus:
        broker = MemoryBroker()
        there = broker.connect("brain")
        await there.subscribe(_WINDOWS, self.service.take_in)
        endpoints = {
            f"{_SUBJECT}.{name}": self.service.answer for name in ("plan", "remedies", "lost", "ended")
        }
        await there.serve("brain", endpoints)
        return broker.connect("engine")

    def _publish(self, body: bytes) -> None:
        self.messages += 1
        self.loop.run_until_complete(self._bus.publish(_WINDOWS, body))

    def _ask(self, what: str, arguments: Any) -> Any:
        self.messages += 2
        body = _encoded(arguments)

        async def ask() -> Message:
            return await self._bus.request(f"{_SUBJECT}.{what}", body, timeout_s=_ASK_S)

        try:
            return msgspec.msgpack.decode(self.loop.run_until_complete(ask()).body)
        except BusTimeout:
            if self.failures:
                raise self.failures[0] from None  # what the policy raised, where the run was started
            raise


class _Service:
    """The policy's side: takes messages, calls the policy, answers."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.samples: list[Window] = []

    def take_in(self, message: Message) -> None:
        """A sample has come."""
        self.samples.append(_unpacked(message.body))

    def answer(self, message: Message) -> None:
        """A request has come."""
        assert message.respond is not None
        arguments = msgspec.msgpack.decode(message.body)
        message.respond(_encoded(self._call(message.subject.rpartition(".")[2], arguments)))

    def _call(self, what: str, arguments: Any) -> Any:
        policy = self.policy
        if what == "plan":
            jobs, figures, now_s, regular = arguments
            view = ClusterView([_seen(job) for job in jobs], *figures)
            return policy.plan(view, now_s, regular)
        if what == "remedies":
            samples, self.samples = self.samples, []
            return policy.observe(samples)
        if what == "lost":
            job, workers, servers = arguments
            return policy.lost(_seen(job), workers, servers)
        job, now_s, completed = arguments
        return policy.ended(_seen(job), now_s, completed)


def _visible(job: JobView) -> list[Any]:
    case = {name: getattr(job.case, name) for name in _VISIBLE}
    hosts = job.worker_hosts, job.server_hosts
    return [case, job.state, job.held, job.effective, job.done, job.changing, job.waited_s, *hosts]


def _seen(body: list[Any]) -> JobView:
    case, state, held, effective, done, changing, waited_s, *hosts = body
    hidden: dict[str, Any] = dict.fromkeys(_HIDDEN, _Hidden())
    known = Case(**{**case, "asked": Size(*case["asked"])}, **hidden)
    sizes = [None if size is None else Size(*size) for size in (held, effective)]
    return JobView(known, state, sizes[0], sizes[1], done, changing, waited_s, *map(tuple, hosts))


def _packed(window: Window) -> bytes:
    fields = {name: getattr(window, name) for name in Window.__dataclass_fields__}
    fields |= {name: fields[name].tolist() for name in ("worker_rates", "server_busy")}
    return _encoded(fields)


def _encoded(body: Any) -> bytes:
    return msgspec.msgpack.encode(body, enc_hook=lambda number: number.item())  # numpy's scalars


def _unpacked(body: bytes) -> Window:
    fields = msgspec.msgpack.decode(body)
    arrays = {name: np.array(fields[name]) for name in ("worker_rates", "server_busy")}
    size, hosts = Size(*fields["size"]), tuple(fields["worker_hosts"])
    return Window(**{**fields, **arrays, "size": size, "worker_hosts": hosts})
