"""Requests that wait for their answers on one inbox of our own.

Used by nats_bus.py, instead of nats-py's own request, which outlives a lost connection until its timeout: here a waiting caller is
told at once.
"""

from __future__ import annotations

import asyncio

from rover_bus.events import nats_jetstream as jetstream
from rover_bus.events.errors import BusTimeout, NoResponders, NotConnected
from rover_bus.events.nats_client import check_payload, denial, translate
from rover_bus.events.nats_py import Client, Msg, nats

_NO_RESPONDERS = "503"


class Questions:
    """What was asked and is not answered yet, over one client after another."""

    def __init__(self) -> None:
        self._inbox = ""
        self._number = 0
        self._asked: dict[str, tuple[asyncio.Future[Msg], str]] = {}

    async def begin(self, client: Client) -> str:
        """Listen for answers on a new client; return the subject on which they come."""
        self._inbox = client.new_inbox() + "."
        await client.subscribe(self._inbox + "*", cb=self._on_answer)
        return self._inbox + "*"

    async def ask(
        self,
        client: Client,
        subject: str,
        body: bytes,
        timeout_s: float,
        headers: dict[str, str] | None,
        again_s: float = 0.0,
    ) -> Msg:
        """Return the first answer. `again_s`: what may be asked twice is asked again after this time, twice as long each time.

        Raises BusTimeout, NoResponders, and NotConnected as soon as the connection breaks.
        """
        loop = asyncio.get_running_loop()
        self._number += 1
        token = f"{self._inbox}{self._number}"
        answer: asyncio.Future[Msg] = loop.create_future()
        self._asked[token] = (answer, subject)
        alarm = loop.call_later(timeout_s, _expire, answer, subject, timeout_s)
        try:
            check_payload(client, subject, body, headers)
            await client.publish(subject, body, reply=token, headers=headers)
            while again_s and not (await asyncio.wait({answer}, timeout=again_s))[0]:
                again_s *= 2
                await client.publish(subject, body, reply=token, headers=headers)
            return await answer
        except nats.errors.Error as error:
            raise translate(error, subject, len(body)) from error
        finally:
            alarm.cancel()
            self._asked.pop(token, None)

    def forbid(self, forbidden: str) -> None:
        """The broker does not let us ask on a subject, in lower case."""
        for answer, subject in self._asked.values():
            if subject.lower() == forbidden and not answer.done():
                answer.set_exception(denial(subject))

    def fail(self, why: str) -> None:
        """Nothing of what was asked will be answered."""
        for answer, subject in self._asked.values():
            if not answer.done():
                answer.set_exception(NotConnected(f"{subject}: {why}"))

    async def _on_answer(self, msg: Msg) -> None:
        waiting = self._asked.get(msg.subject)
        if waiting is None or waiting[0].done():
            return
        answer, subject = waiting
        if msg.headers and not msg.data and msg.headers.get(jetstream.STATUS) == _NO_RESPONDERS:
            answer.set_exception(
                NoResponders(f"no service answers on {subject} now: it has ended, or has not started yet")
            )
        else:
            answer.set_result(msg)


def _expire(answer: asyncio.Future[Msg], subject: str, timeout_s: float) -> None:
    if not answer.done():
        answer.set_exception(
            BusTimeout(
                f"no answer on {subject} within {timeout_s:g} s: whether it took effect is unknown, repeat it"
            )
        )
