"""From records of cuts to facts: the part of `publishing` that concerns them. Pure functions of record and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rover_bus.events import checkpoint_facts as facts
from rover_bus.events import cut_log, search_log
from rover_bus.events.checkpoints import ManifestContent
from rover_bus.events.facts import JobFact
from rover_bus.events.log import Record
from rover_bus.events.model_card import card_of
from rover_bus.master.cut import Cut
from rover_bus.master.state import State


def _names(job: str, number: int, state: State) -> dict[str, Any]:
    """Return what every fact of a cut says. One that has just ended is known by its number alone."""
    cut = state.cuts.get(number)
    generation = cut.generation if cut is not None else state.generation
    return {"job": job, "cut": number, "generation": generation, "uid": state.uid, "history": state.history}


def _opened(job: str, record: cut_log.CutOpened, state: State, term: int) -> list[JobFact]:
    cut = state.cuts.get(record.cut)
    return [
        facts.CheckpointOpened(
            **_names(job, record.cut, state),
            epoch=cut.epoch if cut is not None else 0,
            samples_committed=cut.samples if cut is not None else 0,
            requested=cut.requested if cut is not None else False,
        )
    ]


def _taken(job: str, record: cut_log.PartTaken, state: State, term: int) -> list[JobFact]:
    return [
        facts.PartStaged(
            **_names(job, record.cut, state),
            place=record.place,
            copied_bytes=record.copied_bytes,
            blocked_s=record.blocked_s,
        )
    ]


def _staged(job: str, record: cut_log.CutStaged, state: State, term: int) -> list[JobFact]:
    """Its parts cover every slot. Copies may have been quicker than the last part's report."""
    cut = state.cuts.get(record.cut)
    staged = facts.CheckpointStaged(**_names(job, record.cut, state), parts=_parts(state, record.cut))
    return [staged, *(_redundant(job, cut, state) if cut is not None else [])]


def _parts(state: State, number: int) -> list[Any]:
    cut = state.cuts.get(number)
    return [cut.parts[index] for index in sorted(cut.parts)] if cut is not None else []


def _ordered(job: str, record: cut_log.CutPersistOrdered, state: State, term: int) -> list[JobFact]:
    return [
        facts.CheckpointPersistOrdered(
            **_names(job, record.cut, state), term=term, parts=_parts(state, record.cut), path=record.path
        )
    ]


def _copied(job: str, record: cut_log.PartCopied, state: State, term: int) -> list[JobFact]:
    """Redundant is what is held twice, all of it: said once, by the copy that makes it so (P13)."""
    cut = state.cuts.get(record.cut)
    if cut is None or len(cut.copied[record.part]) > 1:
        return []
    return _redundant(job, cut, state)


def _redundant(job: str, cut: Cut, state: State) -> list[JobFact]:
    """The fact, if the parts cover every slot and each of them has a copy."""
    if cut.state != "staged" or any(part.part not in cut.copied for part in cut.parts.values()):
        return []
    holders = sorted({holder for held in cut.copied.values() for holder in held})
    return [facts.CheckpointRedundant(**_names(job, cut.number, state), holders=holders)]


def _manifest(job: str, record: cut_log.ManifestOrdered, state: State, term: int) -> list[JobFact]:
    cut = state.cuts.get(record.cut)
    if cut is None:
        return []
    return [
        facts.CheckpointManifestOrdered(
            **_names(job, record.cut, state),
            term=term,
            host=record.host,
            path=state.spec.checkpoint.path if state.spec is not None and state.spec.checkpoint else "",
            manifest=manifest_of(state, cut),
        )
    ]


def manifest_of(state: State, cut: Cut) -> ManifestContent:
    """Return what a manifest says: with it and the files that it names, a model and its place in the data are restored."""
    spec, dataset = state.spec, state.dataset
    about = {
        "job": spec.name if spec is not None else "",
        "program": " ".join(spec.program) if spec is not None else "",
    }
    if spec is not None and dataset is not None:
        about |= {
            "seed": str(spec.data.seed),
            "order": f"blocks of 512, windows of 16, seed {dataset.seed}, epoch {cut.epoch}",
            "records": str(dataset.records),
            "data": dataset.digest,
            "samples": str(cut.samples),
            "version": spec.labels.get("version", ""),
        }
    if spec is not None:
        card = card_of(spec, state.uid, dataset, f"{cut.number} of generation {cut.generation}")
        about["card"] = msgspec.json.encode(card).decode()
    return ManifestContent(
        uid=state.uid,
        history=state.history,
        generation=cut.generation,
        cut=cut.number,
        ledger=cut.ledger,
        parts=[cut.stored[index] for index in sorted(cut.stored)],
        about=about,
    )


def _search(job: str, record: search_log.SearchOrdered, state: State, term: int) -> list[JobFact]:
    spec = state.spec.checkpoint if state.spec is not None else None
    return [
        facts.CheckpointSearchOrdered(
            job=job,
            term=term,
            search=record.search,
            host=record.host,
            uid=state.uid,
            history=state.history,
            path=spec.path if spec is not None else "",
            skip=[(each.generation, each.cut) for each in state.tried],
            not_before=state.not_before,
            wanted=record.wanted,
            reason=record.detail,
        )
    ]


PUBLISHERS: dict[type[Record], Callable[[str, Any, State, int], list[JobFact]]] = {
    cut_log.CutDeclined: lambda job, r, state, term: [
        facts.CheckpointDeclined(job=job, reason=r.reason, samples=r.samples)
    ],
    cut_log.CutOpened: _opened,
    cut_log.PartTaken: _taken,
    cut_log.CutStaged: _staged,
    cut_log.CutPersistOrdered: _ordered,
    cut_log.PartCopied: _copied,
    cut_log.ManifestOrdered: _manifest,
    cut_log.CutReady: lambda job, r, state, term: [
        facts.CheckpointReady(**_names(job, r.cut, state), path=r.path, size_bytes=r.size_bytes)
    ],
    cut_log.CutSuperseded: lambda job, r, state, term: [
        facts.CheckpointSuperseded(
            **{**_names(job, r.cut, state), "generation": r.generation}, newer=r.by, reason=r.reason
        )
    ],
    cut_log.CutFailed: lambda job, r, state, term: [
        facts.CheckpointFailed(
            **{**_names(job, r.cut, state), "generation": r.generation},
            reason=r.reason,
            restoring=r.restoring,
            wanted_bytes=r.wanted_bytes,
        )
    ],
    search_log.SearchOrdered: _search,
    search_log.NoneUsable: lambda job, r, state, term: [
        facts.CheckpointNoneUsable(job=job, search=r.search, choice=r.choice, problems=r.problems)
    ],
    cut_log.Restored: lambda job, r, state, term: [
        facts.ServerRestored(
            **_names(job, r.cut, state),
            member=r.member,
            source=r.source,
            seconds=r.seconds,
            rows=r.rows,
            refused=r.refused,
            samples_again=state.samples_again,
        )
    ],
}
