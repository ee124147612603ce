"""Decisions on partial commits: what a progress report is worth (P5, P6). Asked by leasing, concluding and failing."""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events.facts import SkippedRow
from rover_bus.events.log import Committed, Record, Refusal
from rover_bus.events.requests import STALE, Progress, Request
from rover_bus.master.ledger import Holder, Ledger
from rover_bus.master.state import State


def report_progress(
    state: State, request: Request, number: int, progress: Progress
) -> Generator[Record, None, list[int]]:
    """Process partial commits; returns one answer a token. A retry's progress is processed like any other (P7)."""
    ledger = state.ledger
    if ledger is None or not progress.tokens or len(progress.tokens) != len(progress.uptos):
        return [STALE] * len(progress.tokens)
    member = request.member
    holder = ledger.holders[member.index]
    if progress.servers and (reason := _precedes_recovery(state, progress.servers)):
        for token in progress.tokens:
            yield Refusal(member=member, token=token, reason=reason)
        return [STALE] * len(progress.tokens)
    answers, tokens, uptos = ledger.judge(holder, progress.tokens, progress.uptos)
    if STALE in answers:
        for token, answer in zip(progress.tokens, answers, strict=True):
            if answer == STALE:
                yield Refusal(member=member, token=token, reason="stale token")
    if tokens:
        yield Committed(
            worker=member.index,
            incarnation=member.incarnation,
            request=number,
            tokens=tokens,
            uptos=uptos,
            skipped=_skipped_in(ledger, holder, tokens, uptos, progress.skipped),
            skipped_file=progress.skipped_file,
            values_missing=progress.values_missing,
            samples_retrained=progress.samples_retrained,
        )
    return answers


def _precedes_recovery(state: State, servers: list[int]) -> str:
    """A commit whose pushes were acked by a server that has been lost since is worth nothing (P5)."""
    routing = state.routing
    if routing is None:
        return "no servers are routed"
    present = [server.incarnation for server in routing.servers]
    return "" if servers == present else f"acked by server incarnations {servers}, present are {present}"


def _skipped_in(
    ledger: Ledger, holder: Holder, tokens: list[int], uptos: list[int], skipped: list[SkippedRow]
) -> list[SkippedRow]:
    """Keep the skipped rows whose batches this very report commits: each counts once, by position."""
    if not skipped:
        return []
    size = ledger.dataset.batch_size
    ranges = [(holder.leases[token].first, upto) for token, upto in zip(tokens, uptos, strict=True)]
    return [row for row in skipped if any(low <= row.position // size < high for low, high in ranges)]
