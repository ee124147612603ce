"""A parameter server without a socket: tables and admission behind one function from request bytes to reply bytes.

Fed by `server` (sockets) and `simulated` (a network that delays, drops and doubles, in deterministic simulations); told what
to be by `service` (orders of the master). Pure but for its own memory: no clock, no randomness, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage, InputError, NotEnoughMemory, Refused
from rover_bus.events.requests import MoveOrder, RoutingTable
from rover_bus.events.starts import ServerStart
from rover_bus.ps import admission, early, messages, snapshots, update
from rover_bus.ps.admission import Admission, Applied, Apply, Refusal, Repeat
from rover_bus.ps.catalogue import Keys
from rover_bus.ps.changes import indivisible
from rover_bus.ps.frame import BodyReader, Buffer
from rover_bus.ps.hashing import SLOTS
from rover_bus.ps.memory import Pages
from rover_bus.ps.messages import (
    Acked,
    Declare,
    Dump,
    Fetch,
    Fetched,
    Follow,
    Inspect,
    MessageSection,
    Pull,
    Push,
    Reply,
    Request,
)
from rover_bus.ps.moving import Arrival, Departure, groups_of
from rover_bus.ps.routing import owned_slots, owner_of_slots
from rover_bus.ps.rows import Places, all_finite
from rover_bus.ps.snapshots import OpenedPart, Snapshot
from rover_bus.ps.spec import Dense
from rover_bus.ps.storage import Store, only
from rover_bus.ps.store import BatchKey
from rover_bus.ps.tables import TableSet
from rover_bus.ps.traffic import Traffic
from rover_bus.ps.update import Trainable

PAGE_BYTES = 32 << 20  # of values in one page of a dump
REMEMBERED_PULLS = 256  # whose keys wait for their push: of some 100 KiB each

Arrays = list[npt.NDArray[Any]]
Located = tuple[Keys, Places]


class ServerCore:
    """One incarnation of one server. Refuses everything until it is admitted and routed (P5)."""

    decide_push = staticmethod(
        admission.decide_push
    )  # the rules, replaceable where a test shows what each is for

    def __init__(self, index: int, incarnation: int, memory_limit_bytes: int = 0) -> None:
        self.state = Admission(index=index, incarnation=incarnation)
        self._memory_limit_bytes = memory_limit_bytes
        self.tables: TableSet | None = None
        self._seed = 0
        self.follows_changes = False  # for cuts: remember which rows change
        self._pulls = 0
        self._remembered: dict[int, list[Located]] = {}
        self._departing: dict[int, Departure] = {}  # moves away from here
        self._arriving: dict[int, Arrival] = {}  # moves to here
        self.traffic = Traffic()
        self.free_bytes: Callable[[], int] = lambda: 0  # memory that is left for rows; 0: not known
        self.need_orders: Callable[[], object] = lambda: None  # a move is asked for that was not ordered yet
        self.version = 0  # pushes applied: what staleness is measured by
        self.counters: dict[str, float] = {}
        self._listed: (
            tuple[tuple[str, int, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] | None
        ) = None

    # --- orders of the master ---

    def admit(self, *, timeline: int, generation: int, start: ServerStart, seed: int) -> None:
        """Begin a generation. Idempotent. A survivor keeps what it holds (P11)."""
        if self.state.start is not None and (timeline, generation) == (
            self.state.timeline,
            self.state.generation,
        ):
            return
        if timeline == self.state.timeline and generation < self.state.generation:
            raise Refused(
                f"generation {generation} is over: {self.state.generation} is served", "stale_generation"
            )
        kept = start.kind == "kept" and timeline == self.state.timeline
        self._begin_generation(admission.ServerAdmitted(timeline, generation, start), kept, seed)

    @indivisible("the beginning of a generation")
    def _begin_generation(self, admitted: admission.ServerAdmitted, kept: bool, seed: int) -> None:
        self.state = admission.evolve(self.state, admitted)
        self._listed, self._seed = None, seed
        self._remembered.clear()
        self._departing.clear()
        self._end_arrivals()
        if not kept:
            self.tables, self.version, self.counters = None, 0, {}

    def _end_arrivals(self) -> None:
        """No move of a former generation goes on. What is whole waits for the first routing; the rest was never given to us."""
        for arrival in self._arriving.values():
            if not admission.has_arrived(self.state, arrival.slots):
                self._open.drop(arrival.list)
        self._arriving.clear()

    def load(self, part: OpenedPart) -> None:
        """Take over the state of a cut, before the first routing of this generation."""
        if self.state.routing is not None:
            raise Refused(f"server {self.state.index} serves already", "serving")
        if self.follows_changes:
            part.tables.follow_changes()
        state = admission.evolve(self.state, admission.Loaded(part.groups, part.closed_before))
        self.tables, self.version, self.state = part.tables, part.version, state

    def snapshot(self, identity: int = 0) -> Snapshot:
        """See everything that is held, between two pushes (P3). Raises Refused while nothing is held."""
        if self.tables is None or self.state.routing is None:
            raise Refused(f"server {self.state.index} holds nothing yet", "not_admitted")
        return snapshots.take(
            self.tables, self.state.groups, self.version, self.state.closed_before, identity
        )

    def route(self, table: RoutingTable) -> None:
        """Follow a routing table. Raises Refused when it is stale, or gives or takes slots that were not handed over."""
        refusal = admission.decide_routing(self.state, table)
        if refusal:
            raise Refused(refusal.message, refusal.code)
        owner_of_slots(table)  # raises BadMessage
        slots = owned_slots(table, self.state.index)
        self._follow_routing(table, slots)

    @indivisible("a new routing")
    def _follow_routing(self, table: RoutingTable, slots: npt.NDArray[np.int64]) -> None:
        if self.tables is None:
            self.tables = TableSet(slots, self._seed, self._memory_limit_bytes)
            if self.follows_changes:
                self.tables.follow_changes()
        elif not np.array_equal(slots, self.tables.owned):
            self._change_slots(self.tables, slots)
        if self.state.routing is None:  # the first of a generation: no move is on
            self.tables.drop_arriving()
        early.bound(self.tables, table, self._memory_limit_bytes, self.free_bytes)
        self.state = admission.evolve(
            self.state, admission.Routed(table, admission.slots_of(table, self.state.index))
        )

    def _change_slots(self, tables: TableSet, slots: npt.NDArray[np.int64]) -> None:
        """Serve what was handed over to us, drop what was handed over to others."""
        gone, new = np.setdiff1d(tables.owned, slots), np.setdiff1d(slots, tables.owned)
        if len(new):
            tables.own(new)
            self._arriving = {
                m: each for m, each in self._arriving.items() if not np.isin(each.list, new).all()
            }
        if len(gone):
            tables.drop(gone)
            for move in [m for m, each in self._departing.items() if np.isin(each.list, gone).all()]:
                self._end_departure(move)
        self._remembered.clear()  # places that were dropped may hold other rows soon
        self._listed = None

    # --- moves of slots ---

    @property
    def takes_part(self) -> bool:
        """Whether slots are on their way from here or to here."""
        return bool(self._departing or self._arriving)

    def follow_moves(self, orders: list[MoveOrder]) -> None:
        """Obey the master's orders: all moves that this server takes part in. One that is not listed is over."""
        self._follow_moves({order.move: order for order in orders})

    @indivisible("the orders of moves")
    def _follow_moves(self, listed: dict[int, MoveOrder]) -> None:
        for move in [move for move in self._departing if move not in listed]:
            self._end_departure(move)
        for move in [move for move in self._arriving if move not in listed]:
            arrival = self._arriving.pop(move)
            self._open.drop(arrival.list)
            self.state = admission.evolve(self.state, admission.SlotsLeft(arrival.slots))
        me = (self.state.index, self.state.incarnation)
        for move, order in listed.items():
            ours = (order.source.index, order.source.incarnation) == me and self.tables is not None
            if ours and move not in self._departing:
                departure = Departure(order)
                if np.isin(departure.list, self._open.owned).all():
                    self._departing[move] = departure

    def _end_departure(self, move: int) -> None:
        del self._departing[move]
        self.state = admission.evolve(self.state, admission.Thawed(move))

    def begin_arrival(self, order: MoveOrder) -> None:
        """Make room for slots that come. Raises Refused, NotEnoughMemory, MemoryError."""
        if self.state.routing is None:
            raise Refused(
                f"move {order.move} is of another generation: no routing is followed here", "stale_move"
            )
        if order.move in self._arriving:
            self._open.drop(self._arriving.pop(order.move).list)
        self._arriving[order.move] = arrival = Arrival(order, self._open)
        try:
            self._open.hold(arrival.list)
        except BaseException:
            del self._arriving[order.move]
            raise

    def take_in(self, move: int, fetched: Fetched, body: BodyReader, last: bool) -> Arrival:
        """Write rows that the source sent; with the last of them the slots are whole here, and wait for their routing."""
        arrival = self._arriving.get(move)
        if arrival is None:
            raise Refused(f"move {move} is over", "stale_move")
        arrival.take_in(fetched, body, self._open, last)
        if last:
            arrived = admission.Arrived(groups_of(fetched.applied), fetched.closed_before)
            self.state = admission.evolve(self.state, arrived)
        return arrival

    def cold(self) -> list[Pages]:
        """Return memory that rows on their way here are about to be the first to use."""
        return self._open.cold() if self._arriving else []

    def sweep(self) -> bool:
        """Spend a few milliseconds on the rows of slots that have left; False when none are left."""
        return self.tables is not None and self.tables.sweep()

    def _fetch(self, request: Fetch) -> tuple[Reply, Arrays]:
        refusal = admission.decide_peer(self.state, request.fence)
        if refusal:
            return self._refuse(refusal), []
        departure = self._departing.get(request.move)
        if departure is None:
            self.need_orders()
            raise Refused(
                f"move {request.move} was not ordered here (yet, or any more)", messages.UNKNOWN_MOVE
            )
        if departure.check(request):
            self._advance(departure, request)
        applied = admission.groups_in(self.state, departure.slots) if request.hand_over else ()
        return departure.answer(self._open, applied, self.state.closed_before)

    def _advance(self, departure: Departure, request: Fetch) -> None:
        """Choose the rows of the next answer. A move whose choice fails is over: what it took of the changes is lost to it."""
        try:
            departure.advance(request, self._open)
            if request.hand_over:
                self.state = admission.evolve(self.state, admission.Frozen(request.move, departure.slots))
        except BaseException:
            self._end_departure(request.move)
            raise

    def _follow(self, request: Follow) -> Reply:
        if refusal := admission.decide_peer(self.state, request.fence):
            return self._refuse(refusal)
        self.route(request.routing)
        return Acked()

    def has_holes(self, epoch: int) -> bool:
        """Whether the applied sets of an epoch have holes that `settle` may close. May be asked from any thread."""
        return any(len(group.applied.get(epoch, ())) > 1 for group in self.state.groups)

    def settle(self, epoch: int, batches: int) -> None:
        """Fold the first batches of an epoch, which are done for good, into the applied sets (P3)."""
        self.state = admission.evolve(self.state, admission.Settled(epoch, ((0, batches),)))

    def close_epochs(self, before: int) -> None:
        """Forget the applied sets of closed epochs (P11)."""
        self.state = admission.evolve(self.state, admission.EpochsClosed(before))

    # --- requests of workers ---

    def answer(self, header: Buffer, body: Buffer) -> list[Buffer]:
        """Answer one request with one frame. Never raises for what a peer sent; changes nothing when it refuses.

        Raises HalfChanged, after which the server must end; MemoryError where the answer finds no room: what was done stays done.
        """
        before = self.state
        try:
            reply, arrays = self._handle(messages.decode_request(header), BodyReader(memoryview(body)))
        except (BadMessage, InputError) as error:
            self.count("malformed")
            return messages.encode(messages.RefusedMessage(code=error.code, message=str(error)))
        except (MemoryError, NotEnoughMemory) as error:
            if self.state is not before:  # it is done whole: no refusal of it is true
                raise MemoryError from error
            self.count("refused_not_enough_memory")
            return messages.encode(early.no_room(error, self.state.routing))
        except Refused as error:
            self.count(f"refused_{error.code}")
            return messages.encode(messages.RefusedMessage(code=error.code, message=str(error)))
        return messages.encode(reply, arrays)

    def can_wait(self, header: Buffer) -> bool:
        """Whether a request keeps no process waiting but a server that fetches rows at its leisure."""
        return bool(self._departing) and messages.is_leisurely(header)

    def count(self, name: str, by: float = 1) -> None:
        """Add to a counter of `statistics`."""
        self.counters[name] = self.counters.get(name, 0) + by

    def _handle(self, request: Request, body: BodyReader) -> tuple[Reply, Arrays]:
        if isinstance(request, Inspect):
            body.end()
            return messages.ServerStatistics(values=self.statistics()), []
        if isinstance(request, Push):
            return self._push(request, body), []
        if isinstance(request, Fetch):
            body.end()
            return self._fetch(request)
        if isinstance(request, Follow):
            body.end()
            return self._follow(request), []
        refusal = admission.decide_request(self.state, request.fence)
        if refusal:
            return self._refuse(refusal), []
        match request:
            case Pull():
                return self._pull(request, body)
            case Declare():
                self._open.declare(request.tables)
                return messages.Declared(tables=tuple(self._open.catalogue.tables())), []
            case Dump():
                return self._dump(request)

    def _refuse(self, refusal: Refusal) -> Reply:
        self.count(f"refused_{refusal.code}")
        routing = self.state.routing if refusal.code.startswith("stale") else None
        return messages.RefusedMessage(
            code=refusal.code, message=refusal.message, retry_s=refusal.retry_s, routing=routing
        )

    @property
    def _open(self) -> TableSet:
        assert self.tables is not None, "a routed server has tables"
        return self.tables

    def _pull(self, request: Pull, body: BodyReader) -> tuple[Reply, Arrays]:
        arrays, located = [], []
        counted = request.counted and self.traffic.samples()
        for section in request.sections:
            store = self._open.store(section.names)
            keys = messages.read_keys(section, self._open.catalogue.families[section.names[0]], body)
            places = store.locate(keys)
            arrays.append(store.pull(keys, places))
            if counted:
                self.traffic.note(store.slots(keys))
            located.append((keys, places))
        body.end()
        for names in request.dense:
            store = self._dense_store(names)
            keys = _dense_keys(names)
            arrays.append(store.pull(keys, store.locate(keys)))
        if not request.counted:
            return messages.Values(version=self.version), arrays
        self.count("pulls")
        return messages.Values(version=self.version, pull=self._remember(located)), arrays

    def _remember(self, located: list[Located]) -> int:
        """Keep the keys of a pull for its push. Bounded: a worker that comes too late sends its keys again."""
        self._pulls += 1
        self._remembered[self._pulls] = located
        if len(self._remembered) > REMEMBERED_PULLS:
            del self._remembered[next(iter(self._remembered))]
        return self._pulls

    def _push(self, request: Push, body: BodyReader) -> Reply:
        batch = BatchKey(request.epoch, request.number)
        decision = self.decide_push(self.state, request.fence, batch)
        if isinstance(decision, Refusal):
            return self._refuse(decision)
        if isinstance(decision, Repeat):
            self.count("updates_ignored")
            return Acked(repeated=True)
        sections = self._read_sections(request, body, self._fresh(decision))
        families = self._open.catalogue.families
        noting = sum(each.scratch_bytes(sections, families) for each in self._departing.values())
        sections = update.prepare(self._open, sections, noting)
        return self._apply(request, batch, decision, sections)

    @indivisible("a push")
    def _apply(self, request: Push, batch: BatchKey, decision: Apply, sections: list[Trainable]) -> Reply:
        """Train everything and remember that. All memory is had."""
        families = self._open.catalogue.families
        for store, keys, places, _ in update.apply(sections, request.rate_scale):
            for departure in self._departing.values():
                departure.note(families[keys.names[0]], store, keys, places)
        self.state = admission.evolve(self.state, Applied(batch, decision.groups))
        self._remembered.pop(request.pull, None)
        staleness = max(0, self.version - request.version) if request.version >= 0 else 0
        self.version += 1
        self._count_applied(staleness)
        return Acked(repeated=False, staleness_batches=staleness)

    def _count_applied(self, staleness: int) -> None:
        self.count("pushes")
        self.count("staleness_batches_sum", staleness)
        self.counters["staleness_batches_max"] = max(staleness, self.counters.get("staleness_batches_max", 0))

    def _fresh(self, decision: Apply) -> npt.NDArray[np.bool_] | None:
        """Return which slots a push is new to; None for all of them."""
        if len(decision.groups) == len(self.state.groups):
            return None
        fresh = np.zeros(SLOTS, bool)
        for group in decision.groups:
            for first, end in self.state.groups[group].slots:
                fresh[first:end] = True
        return fresh

    def _read_sections(
        self, push: Push, body: BodyReader, fresh: npt.NDArray[np.bool_] | None
    ) -> list[Trainable]:
        """Read and find everything before anything is made or trained: a push is applied whole or refused whole."""
        prepared: list[Trainable] = []
        for section in push.sections:
            store, family = self._open.store(section.names), self._open.catalogue.families[section.names[0]]
            keys, places = self._located(push, section, store, body)
            gradients = body.read(family.dtype, (len(keys.keys), store.rows.width))
            if fresh is not None:
                kept = fresh[store.slots(keys)]
                keys, gradients = only(kept, keys), gradients[kept]
                places = store.locate(keys)
            prepared.append(Trainable(store, keys, places, gradients))
        for names in push.dense:
            store, keys = self._dense_store(names), _dense_keys(names)
            places = store.locate(keys)
            lines = places.stop - places.start if isinstance(places, slice) else len(places)
            gradients = body.read(self._open.catalogue.families[names[0]].dtype, (lines, store.rows.width))
            if fresh is not None:
                kept = fresh[store.slots(keys)]
                places, gradients = np.arange(store.rows.count)[places][kept], gradients[kept]
            prepared.append(Trainable(store, keys, places, gradients))
        body.end()
        if not all(all_finite(each.gradients) for each in prepared):
            raise BadMessage("a push holds gradients that are not finite: the batch is refused")
        return [
            e if e.gradients.flags.writeable else e._replace(gradients=e.gradients.copy()) for e in prepared
        ]

    def _located(self, push: Push, section: MessageSection, store: Store, body: BodyReader) -> Located:
        if section.pulled < 0:
            keys = messages.read_keys(section, self._open.catalogue.families[section.names[0]], body)
            return keys, store.locate(keys)
        remembered = self._remembered.get(push.pull)
        if remembered is None or section.pulled >= len(remembered):
            raise Refused(f"pull {push.pull} is forgotten: send its keys again", messages.FORGOTTEN)
        keys, places = remembered[section.pulled]
        if keys.names != section.names:
            raise BadMessage("a section of a push names other tables than its pull did")
        return keys, places

    def _dense_store(self, names: tuple[str, ...]) -> Store:
        store = self._open.store(names)
        if not isinstance(self._open.catalogue.families[names[0]], Dense):
            raise BadMessage(f"{names[0]!r} is not a dense array")
        return store

    def _dump(self, request: Dump) -> tuple[Reply, Arrays]:
        store = self._open.store((request.table,))
        ids, places = self._listing(request.table, store)
        start = 0 if request.after is None else int(np.searchsorted(ids, request.after, side="right"))
        page = slice(start, start + max(1, PAGE_BYTES // (store.rows.width * store.rows.dtype.itemsize)))
        reply = messages.Dumped(rows=len(ids[page]), more=page.stop < len(ids))
        return reply, [ids[page], store.rows.take(places[page])]

    def _listing(self, table: str, store: Store) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sort a table once for all of its pages."""
        asked = (table, store.rows.count, store.rows.used)
        if self._listed is None or self._listed[0] != asked:
            self._listed = asked, store.listing(table)
        return self._listed[1]

    def statistics(self) -> dict[str, float]:
        """Return the counters, and what is in use now."""
        count = self.counters.get("pushes", 0)
        return {
            "pulls": 0,
            "pushes": 0,
            "updates_ignored": 0,
            "malformed": 0,
            **self.counters,
            "staleness_batches": self.counters.get("staleness_batches_sum", 0) / count if count else 0.0,
            "memory_bytes": self.tables.memory_bytes if self.tables else 0,
            "row_bytes": self.tables.row_bytes if self.tables else 0,
            "rows": self.tables.rows if self.tables else 0,
        }


def _dense_keys(names: tuple[str, ...]) -> Keys:
    none = np.empty(0, np.int64)
    return Keys(names, none, none)
