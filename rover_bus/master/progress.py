"""Decisions on partial commits: what a progress report is worth (P5, P6). Asked by leasing, concluding and failing."""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events.data_facts import CommitRefused
from rover_bus.events.log import Committed, Record
from rover_bus.events.requests import STALE, Progress, Request
from rover_bus.master.state import State


def report_progress(
    state: State, request: Request, number: int, progress: Progress
) -> Generator[Record, None, list[int]]:
    """Process partial commits; returns one answer a token. A retry's progress is processed like any other (P7)."""
    ledger = state.ledger
    member = request.member
    unusable = (
        ledger is None
        or member.role != "worker"
        or len(progress.tokens) != len(progress.uptos)
        or len(set(progress.tokens)) != len(progress.tokens)
    )
    if ledger is None or unusable or not progress.tokens:
        return [STALE] * len(progress.tokens)
    holder = ledger.holders[member.index]
    if progress.servers and (reason := _precedes_recovery(state, progress.servers)):
        for token in progress.tokens:
            yield CommitRefused(member=member, token=token, reason=reason, cause=str(member))
        return [STALE] * len(progress.tokens)
    answers, tokens, uptos = ledger.judge(holder, progress.tokens, progress.uptos)
    if STALE in answers:
        for token, answer in zip(progress.tokens, answers, strict=True):
            if answer == STALE:
                yield CommitRefused(member=member, token=token, reason="stale token", cause=str(member))
    if tokens:
        size = ledger.dataset.batch_size
        committing = [(holder.leases[token].first, upto) for token, upto in zip(tokens, uptos, strict=True)]
        if ledger.lockstep is not None:  # what another worker has, it reports
            repeats = ledger.lockstep.repeats
            committing = [
                each for each, token in zip(committing, tokens, strict=True) if token not in repeats
            ]
        yield Committed(
            worker=member.index,
            incarnation=member.incarnation,
            request=number,
            tokens=tokens,
            uptos=uptos,
            skipped=[row for row in progress.skipped if _within(committing, row.position // size)],
            skipped_file=progress.skipped_file,
            values_missing=sum(count for batch, count in progress.missing if _within(committing, batch)),
            samples_retrained=progress.samples_retrained,
        )
    return answers


def _precedes_recovery(state: State, servers: list[int]) -> str:
    """A commit whose pushes were acked by a server that has been lost since is worth nothing (P5).

    Any routing of this generation will do: a server that has given its slots away gave their applied sets with them (P3).
    """
    routing = state.slots.routing
    if routing is None:
        return "no servers are routed"
    if servers in state.slots.acking:
        return ""
    present = [server.incarnation for server in routing.servers]
    return f"acked by server incarnations {servers}, present are {present}"


def _within(ranges: list[tuple[int, int]], batch: int) -> bool:
    """What rides on a report counts only with the batches that this very report commits: once, by position (P6)."""
    return any(low <= batch < high for low, high in ranges)
