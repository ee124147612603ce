"""A tenant's account as the control account reaches it: streams, buckets and samples under `tenant.<t>.`, by their names there.

Made by `NatsBus.of`; the connection is the control account's, which imports all this (auth/accounts.py). Apart from nats_bus.py
because nothing of the connection is decided here: names go out with what stands before them, and come back without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from rover_bus.events.bus import (
    NO_HEADERS,
    Bus,
    ConnectionState,
    Entry,
    Headers,
    Message,
    Stored,
    Subscription,
)
from rover_bus.events.errors import InputError
from rover_bus.events.nats_follow import NatsFollower
from rover_bus.events.nats_jetstream import source_sequence
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.nats_wire import Raw, Ways, Written
from rover_bus.events.streams import FACTS, OF_CONTROL, PROFILES
from rover_bus.events.subjects import (
    BRAIN_LOG,
    DEFAULT_TENANT,
    into_tenant,
    matches,
    of_tenant,
    seen_of_tenant,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rover_bus.events.nats_bus import NatsBus

COPIED_LOOKS, COPIED_LOOK_S = 40, 0.05


class NatsTenantBus(NatsStorage):
    """What `NatsBus.of(tenant)` gives. Closing it closes nothing: the connection is another's."""

    def __init__(self, whole: NatsBus, tenant: str) -> None:
        super().__init__()
        self._whole, self.tenant, self.url = whole, tenant, whole.url
        self.root, self.into = of_tenant(tenant, ""), into_tenant(tenant)
        self.ways = Ways(direct=whole.ways.direct)

    @property
    def connected(self) -> bool:
        return self._whole.connected

    @property
    def max_payload_bytes(self) -> int:
        return self._whole.max_payload_bytes

    @property
    def replicas(self) -> int:
        return self._whole.replicas

    def of(self, tenant: str) -> Bus:
        """Return a tenant's account; a job that is named without one is this tenant's own."""
        return self if tenant in (DEFAULT_TENANT, self.tenant) else self._whole.of(tenant)

    def on_connection(self, listener: Callable[[ConnectionState], None]) -> None:
        self._whole.on_connection(listener)

    async def publish(self, subject: str, body: bytes, headers: Headers = NO_HEADERS) -> None:
        await self._whole.publish(f"{self.into}{subject}", body, headers)

    async def subscribe(
        self, subject: str, handler: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        """Hear samples, as its stream takes them in; nothing else that a tenant's processes publish leaves its account.

        Raises InputError.
        """
        if queue or not matches("rover.profile.>", subject):
            raise InputError(f"{subject} of the tenant {self.tenant} cannot be heard in the control account")

        def deliver(stored: Stored) -> None:
            handler(Message(stored.subject, stored.body, stored.headers))

        return await self.follow(PROFILES, [subject], deliver)

    async def request(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Headers = NO_HEADERS
    ) -> Message:
        """Ask a daemon: daemons are the control account's."""
        return await self._whole.request(subject, body, timeout_s=timeout_s, headers=headers)

    async def serve(
        self,
        service: str,
        endpoints: Mapping[str, Callable[[Message], None]],
        /,
        *,
        metadata: Headers = NO_HEADERS,
    ) -> Subscription:
        """Answer what the tenant's processes ask of the control account."""
        prefixed = {f"{self.root}{subject}": handler for subject, handler in endpoints.items()}
        return await self._whole.serve(service, prefixed, metadata=metadata)

    async def purge(self, stream: str, subject: str, *, before: int | None = None) -> None:
        """Purge in the tenant's account, and what goes to its end there in the control account's copy of facts too.

        What is purged below a message behind which more is stored, is left to the retention of the copy.
        """
        await super().purge(stream, subject, before=before)
        if stream != FACTS:
            return
        copy = of_tenant(self.tenant, subject)
        if before is None:
            await self._whole.purge(FACTS, copy)
            return
        newest = await self._copied(copy, before)
        if newest is not None and source_sequence(newest.headers) == before:
            await self._whole.purge(FACTS, copy, before=newest.sequence)

    async def _copied(self, copy: str, sequence: int) -> Stored | None:
        """Wait a moment until the copy has come to what has a number in the tenant's account; return its newest."""
        newest = await self._whole.last(FACTS, copy)
        for _ in range(COPIED_LOOKS):
            if newest is not None and source_sequence(newest.headers) >= sequence:
                break
            await asyncio.sleep(COPIED_LOOK_S)
            newest = await self._whole.last(FACTS, copy)
        return newest

    # What is the control account's

    async def get(self, bucket: str, key: str) -> Entry | None:
        return await (self._whole.get(bucket, key) if bucket in OF_CONTROL else super().get(bucket, key))

    async def entries(self, bucket: str, key: str) -> dict[str, Entry]:
        of_control = bucket in OF_CONTROL
        return await (self._whole.entries(bucket, key) if of_control else super().entries(bucket, key))

    def read(self, stream: str, subject: str, *, first: int = 1) -> AsyncIterator[Stored]:
        if subject == BRAIN_LOG:
            return self._whole.read(stream, subject, first=first)
        return super().read(stream, subject, first=first)

    # What the connection gives

    async def ask(
        self, subject: str, body: bytes, timeout_s: float, headers: Written = None, again_s: float = 0.0
    ) -> Raw:
        return await self._whole.ask(subject, body, timeout_s, headers, again_s)

    async def post(self, subject: str, body: bytes, reply: str) -> None:
        await self._whole.post(subject, body, reply)

    def message_id(self, name: str) -> str:
        return self._whole.message_id(name)

    def new_inbox(self) -> str:
        return self._whole.new_inbox()

    def delivery_inbox(self) -> str:
        return seen_of_tenant(self.tenant, self._whole.new_inbox().removeprefix("_INBOX."))

    async def listen(self, subject: str, callback: Callable[[Raw], None]) -> Callable[[], Awaitable[None]]:
        return await self._whole.listen(subject, callback)

    def send(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._whole.send(subject, body, headers)

    def mend(self, reader: NatsFollower) -> None:
        self._whole.mend(reader)

    async def keep_reader(self, reader: NatsFollower) -> Subscription:
        return await self._whole.keep_reader(reader)

    async def close(self) -> None:
        """Close nothing."""
