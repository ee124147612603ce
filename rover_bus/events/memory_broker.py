"""A broker in memory whose weather comes from a seed: delays, losses, doubles, ambiguous acks, partitions, crashes, power cuts.

Fed by memory_bus.py (one `Link` a connection) and by the simulation that owns it; feeds handlers through the loop. What it keeps
stands in memory_store.py, its connections in memory_links.py. A message makes two hops, client to broker and broker to client;
each hop keeps its order, as a TCP connection does, except where a fault says otherwise. Chance comes from one generator, and
nothing iterates over a set or compares addresses, so that the same seed is the same history under virtual_time.py, whatever
PYTHONHASHSEED says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Literal

from rover_bus.events.bus import Entry, Headers, Message, Stored
from rover_bus.events.errors import BusError, NoResponders, NotConnected
from rover_bus.events.memory_links import (
    CALM,
    Faults,
    Link,
    MemoryFollower,
    MemoryInterest,
    MemoryWatch,
    Range,
)
from rover_bus.events.memory_store import MemoryBucket, MemoryStream
from rover_bus.events.streams import BUCKETS, STREAMS, BucketSpec, StreamSpec
from rover_bus.events.subjects import matches

if TYPE_CHECKING:
    from rover_bus.events.memory_bus import MemoryBus

SYNC_INTERVAL_S = 120.0  # the server's default: JetStream acks before it syncs


class MemoryBroker:
    """All streams, buckets and links of one simulated cluster.

    `sync` is what a power cut may take: with "default" the tail since the last sync (every 120 s), with "always" nothing.
    `faults` may be replaced at any time, for example by CALM to let a history end.
    """

    def __init__(
        self,
        seed: int = 0,
        faults: Faults = CALM,
        *,
        streams: Iterable[StreamSpec] = STREAMS,
        buckets: Iterable[BucketSpec] = BUCKETS,
        sync: Literal["default", "always"] = "default",
    ) -> None:
        self.faults = faults
        self.sync = sync
        self.streams: dict[str, MemoryStream] = {}
        self.buckets: dict[str, MemoryBucket] = {}
        self.bucket_specs: dict[str, BucketSpec] = {}
        self.running = True
        self._chance = random.Random(seed)
        self._links: dict[int, Link] = {}
        self._interests: dict[int, MemoryInterest] = {}
        self._routes: dict[str, tuple[list[MemoryInterest], list[list[MemoryInterest]]]] = {}
        self._captures: dict[str, list[MemoryStream]] = {}
        self._numbers = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._alarm: asyncio.Handle | None = None
        self._alarm_s = 0.0  # its loop time: uvloop's handle of a time that has passed does not say it
        self.ensure(streams, buckets)

    def connect(self, name: str) -> MemoryBus:
        """Return a new connection of the process `name`; a process may have several."""
        from rover_bus.events.memory_bus import MemoryBus

        link = Link(name, state="connected" if self.running else "disconnected")
        self._links[self.number()] = link
        return MemoryBus(self, link)

    def ensure(self, streams: Iterable[StreamSpec], buckets: Iterable[BucketSpec]) -> None:
        """Create what is not there yet."""
        for stream in streams:
            self.streams.setdefault(stream.name, MemoryStream(stream))
        for bucket in buckets:
            self.bucket_specs.setdefault(bucket.name, bucket)
            self.buckets.setdefault(bucket.name, MemoryBucket())
        self._captures.clear()

    # Weather by hand

    def partition(self, name: str) -> None:
        """Cut a process off: what it sends and what is sent to it is lost; both ends notice after `faults.detect_s`."""
        for link in self._named(name):
            link.partition = partition = self.number()
            self.post(self.faults.detect_s, self._notice, link, partition)

    def heal(self, name: str) -> None:
        """Let a process through again. If no one noticed, its streams just go on; otherwise it reconnects."""
        for link in self._named(name):
            link.partition = 0
            if link.state == "connected":
                self._attach(link)
            else:
                self._invite(link)

    def kill(self, name: str) -> None:
        """Crash a process: its subscriptions vanish, no handler of it runs, and its next step on the bus cancels it."""
        for link in self._named(name):
            self.leave(link, "dead")

    def restart(self, down_s: float = 0.0) -> None:
        """Kill the broker and start it again after `down_s`: connections drop, memory is emptied, files stay."""
        self.running = False
        for link in list(self._links.values()):
            self._drop(link)
        for name, stream in self.streams.items():
            if stream.spec.storage == "memory":
                self.streams[name] = MemoryStream(stream.spec)
        for name, spec in self.bucket_specs.items():
            if spec.storage == "memory":
                self.buckets[name] = MemoryBucket()
        self._captures.clear()
        self.post(down_s, self._start)

    def power_cut(self, down_s: float = 0.0) -> None:
        """Restart, and lose a part of what was acked but not yet synced."""
        for stream in self.streams.values():
            if stream.spec.storage == "file" and self.sync == "default":
                stream.truncate(self._chance.randint(stream.synced, stream.last))
        self.restart(down_s)

    # Hops

    def up(self, link: Link, call: Callable[..., None], *args: Any) -> None:
        """Carry something from a client to the broker, in order; at once where the weather is calm."""
        now, delay = self.now(), self._draw(self.faults.delay_s)
        if not delay and link.up_floor_s <= now:
            self._receive(link, link.era, call, args)
            return
        link.up_floor_s = max(link.up_floor_s, now + delay)
        self._post_at(link.up_floor_s, self._receive, link, link.era, call, args)

    def down(self, link: Link, call: Callable[..., None], *args: Any, extra: Range = (0.0, 0.0)) -> None:
        """Carry something from the broker to a client, in order."""
        delay = self._draw(self.faults.delay_s) + self._draw(extra)
        link.down_floor_s = max(link.down_floor_s, self.now() + delay)
        self._post_at(link.down_floor_s, self._arrive, link, link.era, call, args)

    def _receive(self, link: Link, era: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.running and not link.partition and link.era == era:
            call(*args)

    def _arrive(self, link: Link, era: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if link.reachable and link.era == era:
            call(*args)

    # Core messages

    def add_interest(self, link: Link, interest: MemoryInterest) -> int:
        number = self.number()
        self._interests[number] = link.interests[number] = interest
        self._routes.clear()
        return number

    def remove_interest(self, link: Link, number: int) -> None:
        interest = link.interests.pop(number, None)
        if interest is not None:
            interest.active = False
            del self._interests[number]
            self._routes.clear()

    def publish(self, subject: str, body: bytes, headers: Headers) -> None:
        """Take a core message: streams that cover its subject keep it, subscribers get it."""
        for stream in self._capturing(subject):
            try:
                self.store(stream, subject, body, headers, None)
            except BusError:
                continue  # a core publish learns nothing of a full stream, here as with NATS
        self.route(subject, body, headers, None, None)

    def request(
        self, asker: Link, answer: asyncio.Future[Message], subject: str, body: bytes, headers: Headers
    ) -> None:
        """Route a request; the asker learns at once when no service has the subject."""
        if not self.route(subject, body, headers, asker, answer):
            refusal = NoResponders(
                f"no service answers on {subject} now: it has ended, or has not started yet"
            )
            self.down(asker, settle, answer, refusal)

    def route(
        self,
        subject: str,
        body: bytes,
        headers: Headers,
        asker: Link | None,
        answer: asyncio.Future[Message] | None,
    ) -> bool:
        """Deliver to every subscriber and to one member of each queue; False when there is none."""
        singles, queues = self._routes.get(subject) or self._find_route(subject)
        chosen = [interest for interest in singles if interest.link.state == "connected"]
        for queue in queues:
            present = [interest for interest in queue if interest.link.state == "connected"]
            if present:
                chosen.append(present[0] if len(present) == 1 else self._chance.choice(present))
        for interest in chosen:
            respond = None
            if asker is not None:
                respond = self._responder(interest.link, asker, answer)
            self._deliver(
                interest.link, self._hand_over, interest, Message(subject, body, dict(headers), respond)
            )
        return bool(chosen)

    def _responder(
        self, server: Link, asker: Link, answer: asyncio.Future[Message] | None
    ) -> Callable[[bytes], None]:
        def respond(body: bytes) -> None:
            if server.state == "connected":
                self.up(server, self._deliver, asker, settle, answer, Message("", body))

        return respond

    def _deliver(self, link: Link, call: Callable[..., None], *args: Any) -> None:
        faults = self.faults
        if faults.drop and self._chance.random() < faults.drop:
            return
        for _ in range(2 if faults.duplicate and self._chance.random() < faults.duplicate else 1):
            if faults.reorder and self._chance.random() < faults.reorder:
                late = self._draw(faults.delay_s) + self._draw(faults.reorder_s)
                self.post(late, self._arrive, link, link.era, call, args)
            else:
                self.down(link, call, *args)

    def _hand_over(self, interest: MemoryInterest, message: Message) -> None:
        if interest.active:
            interest.handler(message)

    def _find_route(self, subject: str) -> tuple[list[MemoryInterest], list[list[MemoryInterest]]]:
        singles: list[MemoryInterest] = []
        queues: dict[tuple[str, str], list[MemoryInterest]] = {}
        for interest in self._interests.values():
            if matches(interest.pattern, subject):
                if interest.queue:
                    queues.setdefault((interest.queue, interest.pattern), []).append(interest)
                else:
                    singles.append(interest)
        route = self._routes[subject] = (singles, list(queues.values()))
        return route

    # Streams

    def store(
        self,
        stream: MemoryStream,
        subject: str,
        body: bytes,
        headers: Headers,
        expected_last: int | None,
    ) -> int:
        """Store and hand on to the stream's followers. Raises WrongSequence, StreamFull."""
        now = self.now()
        sequence, message = stream.store(subject, body, headers, now, expected_last)
        if self.sync == "always" or now - stream.synced_s >= SYNC_INTERVAL_S:
            stream.synced, stream.synced_s = sequence, now
        if message is not None:
            for link in self._links.values():
                for follower in link.followers.values():
                    if follower.stream == stream.spec.name and _any_matches(follower.patterns, subject):
                        self.down(link, self._feed, follower, follower.attempt, message)
        return sequence

    def follow(self, follower: MemoryFollower, backlog: list[Stored]) -> int:
        number = self.number()
        follower.link.followers[number] = follower
        for message in backlog:
            self.down(follower.link, self._feed, follower, follower.attempt, message)
        return number

    def _feed(self, follower: MemoryFollower, attempt: int, message: Stored) -> None:
        if attempt == follower.attempt and message.sequence >= follower.next:
            follower.next = message.sequence + 1
            follower.handler(message)

    # Buckets

    def put(self, bucket: str, key: str, value: bytes, expected: int | None, ttl_s: float | None) -> int:
        """Write a value, tell its watchers, and see to its end when it has a time to live."""
        deadline = None if ttl_s is None else self.now() + ttl_s
        entry = self.buckets[bucket].put(key, value, expected, deadline)
        self._announce(bucket, entry)
        if ttl_s is not None:
            self.post(ttl_s, self._expire, self.buckets[bucket], bucket, key, entry.revision)
        return entry.revision

    def delete(self, bucket: str, key: str, expected: int | None) -> None:
        entry = self.buckets[bucket].delete(key, expected)
        if entry is not None:
            self._announce(bucket, entry)

    def watch(self, watch: MemoryWatch) -> int:
        number = self.number()
        watch.link.watches[number] = watch
        self._refresh(watch)
        return number

    def _expire(self, kept: MemoryBucket, bucket: str, key: str, revision: int) -> None:
        entry = kept.expire(key, revision) if kept is self.buckets[bucket] else None
        if entry is not None:
            self._announce(bucket, entry)

    def _announce(self, bucket: str, entry: Entry) -> None:
        for link in self._links.values():
            for watch in link.watches.values():
                if watch.bucket == bucket and matches(watch.pattern, entry.key):
                    self.down(link, self._show, watch, watch.attempt, entry)

    def _refresh(self, watch: MemoryWatch) -> None:
        """Tell a watcher what it does not know: present values, and the end of those that are gone."""
        bucket = self.buckets[watch.bucket]
        present = {key: entry for key, entry in bucket.entries.items() if matches(watch.pattern, key)}
        gone = [
            Entry(key, None, known.revision)
            for key, known in watch.known.items()
            if key not in present and known.value is not None
        ]
        news = [entry for key, entry in present.items() if watch.known.get(key) is not entry]
        for entry in [*gone, *sorted(news, key=lambda entry: entry.revision)]:
            self.down(watch.link, self._show, watch, watch.attempt, entry)

    def _show(self, watch: MemoryWatch, attempt: int, entry: Entry) -> None:
        if attempt == watch.attempt:
            watch.known[entry.key] = entry
            watch.handler(entry)

    # Links

    def leave(self, link: Link, state: Literal["closed", "dead"]) -> None:
        """Forget a link for good. What it still waits for never comes."""
        link.state = state
        for number in list(link.interests):
            self.remove_interest(link, number)
        link.followers.clear()
        link.watches.clear()
        for number, known in list(self._links.items()):
            if known is link:
                del self._links[number]
        for answer in list(link.waiting):
            if state == "dead":
                answer.cancel()
            else:
                settle(answer, NotConnected("this connection was closed while it waited for an answer"))

    def _drop(self, link: Link) -> None:
        if link.state != "connected":
            return
        link.state = "disconnected"
        link.era += 1
        for answer in list(link.waiting):
            settle(answer, NotConnected("the connection to the broker broke before the answer came"))
        link.notify("disconnected")

    def _notice(self, link: Link, partition: int) -> None:
        if link.partition == partition:
            self._drop(link)

    def _start(self) -> None:
        self.running = True
        for link in list(self._links.values()):
            self._invite(link)

    def _invite(self, link: Link) -> None:
        self.post(self._draw(self.faults.reconnect_s), self._reconnect, link)

    def _reconnect(self, link: Link) -> None:
        if self.running and link.state == "disconnected" and not link.partition:
            link.state = "connected"
            self._attach(link)
            link.notify("connected")

    def _attach(self, link: Link) -> None:
        """Let followers go on after what they were given last, and tell watchers what changed meanwhile."""
        for follower in list(link.followers.values()):
            follower.attempt += 1
            stream = self.streams[follower.stream]
            follower.next = min(follower.next, stream.last + 1)
            for message in list(stream.select(follower.patterns, follower.next)):
                self.down(link, self._feed, follower, follower.attempt, message)
        for watch in list(link.watches.values()):
            watch.attempt += 1
            self._refresh(watch)

    def _named(self, name: str) -> list[Link]:
        return [link for link in self._links.values() if link.name == name]

    # Time and chance

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._chance.random() < probability

    def post(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call later, in order of time and then of posting."""
        self._post_at(self.now() + delay_s, call, *args)

    def _post_at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        # Own agenda, not the loop's timers: those do not promise an order among equal times.
        loop = asyncio.get_running_loop()
        if not self._agenda and when <= loop.time():
            loop.call_soon(call, *args)
            return
        heappush(self._agenda, (when, self.number(), call, args))
        if self._alarm is None or when < self._alarm_s:
            self._set_alarm(loop)

    def _set_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if self._agenda:
            self._alarm_s = self._agenda[0][0]
            self._alarm = loop.call_at(self._alarm_s, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        while self._agenda and self._agenda[0][0] <= now:
            _, _, call, args = heappop(self._agenda)
            loop.call_soon(call, *args)
        self._alarm = None
        self._set_alarm(loop)

    def _draw(self, bounds: Range) -> float:
        return self._chance.uniform(*bounds) if bounds[1] > 0 else 0.0

    def _capturing(self, subject: str) -> list[MemoryStream]:
        found = self._captures.get(subject)
        if found is None:
            found = self._captures[subject] = [
                stream for stream in self.streams.values() if _any_matches(stream.spec.subjects, subject)
            ]
        return found


def settle(answer: asyncio.Future[Any], result: object) -> None:
    """Give a waiting call its result or its error, unless it has gone."""
    if answer.done():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _any_matches(patterns: list[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)
