"""What leaves the master because of a record: a fact with its place in the log (P18), and the routing table in its bucket.

A record that is a fact is published as it is. Three others become one, because it says more than the log needs or less than the
log holds; leases and commits, the hot records, are not published: `rover top` reads progress from `job.reported`. A pure function
of the record and the state behind it, so that a successor derives the same facts from the same log.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rover_bus.events import causes, log
from rover_bus.events.checkpoint_facts import CheckpointManifestOrdered
from rover_bus.events.checkpoints import ManifestContent
from rover_bus.events.data_facts import LedgerRewound, RowsSkipped
from rover_bus.events.facts import JobFact, Position, RoutingChanged
from rover_bus.events.identity import Member
from rover_bus.events.log import Record
from rover_bus.events.model_card import card_of
from rover_bus.events.outbox import FactOut, Outgoing, PutValue
from rover_bus.events.requests import RoutingTable
from rover_bus.events.streams import ROUTING
from rover_bus.master.cut import Cut
from rover_bus.master.state import AnyState, State, Unopened


def outgoing(job: str, record: Record, position: Position, state: AnyState, term: int) -> list[Outgoing]:
    """Return the fact that a record is or makes, with its position, then bucket values. `state`: the record is evolved."""
    fact = record if isinstance(record, JobFact) else _translate(record, state)
    if fact is None:
        return []
    made: list[Outgoing] = [FactOut(_stamp(fact, job, position, state, term), position, term)]
    return [*made, *standing(job, state)] if isinstance(record, RoutingChanged) else made


def _stamp(fact: JobFact, job: str, position: Position, state: AnyState, term: int) -> JobFact:
    """Add what all records of a log share, and which the log therefore does not repeat."""
    known = state.job if isinstance(state, State) else None
    shared: dict[str, Any] = {"term": term}
    if known is not None:
        shared |= {"uid": known.uid, "timeline": known.timeline}
    more = {name: value for name, value in shared.items() if name in fact.__struct_fields__}
    return fact.replace(job=job, position=position, **more)


def standing(job: str, state: AnyState) -> list[Outgoing]:
    """Return the absolute bucket values of the present state; a new leader writes them again."""
    if isinstance(state, Unopened) or state.slots.routing is None:
        return []
    return [PutValue(ROUTING, job, routing_value(state.slots.routing))]


def routing_value(table: RoutingTable) -> bytes:
    """Routing as JSON: `nats kv get ROVER_ROUTING <job>` must be readable."""
    return msgspec.json.encode(table)


def _translate(record: Record, state: AnyState) -> JobFact | None:
    if isinstance(state, Unopened):
        return None
    match record:
        case log.Committed():
            return _skipped(record, state)
        case log.Rewound():
            return _rewound(record, state)
        case log.ManifestOrdered():
            return _manifest(record, state)
        case _:
            pass  # the others do not matter here
    return None


def _skipped(record: log.Committed, state: State) -> JobFact | None:
    if not record.skipped:
        return None
    return RowsSkipped(
        epoch=state.ledger.epoch if state.ledger is not None else 0,
        file=record.skipped_file,
        rows=record.skipped,
        cause=causes.request(Member("worker", record.worker, record.incarnation), record.request),
    )


def _rewound(record: log.Rewound, state: State) -> JobFact:
    ledger = state.ledger
    wanted = state.seats.wanted_servers()
    return LedgerRewound(
        generation=record.generation,
        epoch=max(ledger.epoch, 0) if ledger is not None else 0,
        committed_batches=ledger.done.total if ledger is not None else 0,
        reason=record.reason,
        cut=record.cut,
        servers=[wanted[index].member for index in record.servers if index in wanted],
        samples_again=record.samples_again,
        cause=record.cause,
    )


def _manifest(record: log.ManifestOrdered, state: State) -> JobFact | None:
    cut = state.cuts.known.get(record.cut)
    if cut is None:
        return None
    return CheckpointManifestOrdered(
        cut=cut.number,
        generation=cut.generation,
        host=record.host,
        path=state.job.spec.checkpoint.path if state.job.spec.checkpoint else "",
        manifest=manifest_of(state, cut),
        cause=record.cause,
    )


def manifest_of(state: State, cut: Cut) -> ManifestContent:
    """Return what a manifest says: with it and the files that it names, a model and its place in the data are restored."""
    spec, dataset = state.job.spec, state.ledger.dataset if state.ledger is not None else None
    about = {"job": spec.name, "program": " ".join(spec.program)}
    if dataset is not None:
        about |= {
            "seed": str(spec.data.seed),
            "order": f"blocks of 512, windows of 16, seed {dataset.seed}, epoch {cut.epoch}",
            "records": str(dataset.records),
            "data": dataset.digest,
            "samples": str(cut.samples),
            "version": spec.labels.get("version", ""),
        }
    card = card_of(spec, state.job.uid, dataset, f"{cut.number} of generation {cut.generation}")
    about["card"] = msgspec.json.encode(card).decode()
    return ManifestContent(
        uid=state.job.uid,
        timeline=cut.timeline or state.job.timeline,
        generation=cut.generation,
        cut=cut.number,
        ledger=cut.ledger,
        parts=[cut.stored[index] for index in sorted(cut.stored)],
        about=about,
    )
