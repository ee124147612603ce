"""A job at any moment that its log keeps: what `rover replay` and the page's slider read is what the log says up to there."""

from __future__ import annotations

import asyncio

from msgspec import structs
from snapshots_in_logs import NOTHING_KEPT, TinyChunks, replay, work_through

from rover_bus.cli.views.moments import KeptReplays, read_state
from rover_bus.events import subjects
from rover_bus.events.errors import Refused
from rover_bus.events.facts import JobOpened, MasterElected
from rover_bus.events.journal import Journal
from rover_bus.events.log import LogBatch
from rover_bus.events.retention import ROUND_S
from rover_bus.events.streams import LOG


def states(stage, **master):
    """Play a job with snapshots; return what is stored, and for each of its batches the state read there, or why there is none."""

    async def scenario(it):
        await it.begin()
        it.master("m0", TinyChunks, snapshot_every_batches=7, **master)
        worker = await it.worker()
        await work_through(it, worker, 20)
        await asyncio.sleep(ROUND_S)
        stored, read, bus = it.stored(), {}, it.broker.connect("reader")
        for each in stored:
            try:
                read[each.sequence] = await read_state(bus, "j", each.sequence)
            except Refused as refused:
                read[each.sequence] = refused
        return stored, read, await read_state(bus, "j", None), await read_state(bus, "j", 1 << 40)

    return stage(scenario)


def test_every_moment_of_a_log_is_what_a_replay_of_all_before_it_gives(stage):
    stored, read, newest, beyond = states(stage)
    for number, each in enumerate(stored):
        state = read[each.sequence]
        said = replay([batch.body for batch in stored[: number + 1]]).state
        ledger = getattr(said, "ledger", None)
        done = ledger.samples_done() if ledger is not None else (0, 0)
        assert state.at.sequence == each.sequence
        assert (state.term, state.committed, state.dead_lettered) == (said.term, *done)
        if ledger is not None and ledger.epoch >= 0:
            assert state.ledger.committed == list(ledger.done)
            leased = sum(
                lease.end - lease.first for h in ledger.holders.values() for lease in h.leases.values()
            )
            assert state.ledger.leased_batches == leased
    assert newest == beyond == read[stored[-1].sequence]
    assert newest.first.sequence == stored[0].sequence
    assert newest.committed > 0


def test_a_moment_before_the_first_that_is_kept_is_refused_with_that_ones_time(stage):
    stored, read, newest, _ = states(stage, keep=NOTHING_KEPT)
    assert stored[0].sequence > 1
    whole = next(each for each in stored if each.sequence == newest.first.sequence)
    assert whole.sequence > stored[0].sequence, "a snapshot of several pieces is no state before the last"
    for each in stored:
        if each.sequence < whole.sequence:
            assert isinstance(read[each.sequence], Refused)
            assert f"the first moment is {whole.sequence}, of " in str(read[each.sequence])
        else:
            assert read[each.sequence].at.sequence == each.sequence
    assert newest.first.time_ms == whole.time_ms


def test_the_present_is_read_on_and_is_what_a_reader_from_the_beginning_finds_also_after_a_purge(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", TinyChunks, snapshot_every_batches=7, keep=NOTHING_KEPT)
        worker, bus, kept = await it.worker(), it.broker.connect("reader"), KeptReplays()
        pairs = []
        for round_s in (0.0, 0.0, 0.0, ROUND_S):
            await work_through(it, worker, 8)
            await asyncio.sleep(round_s)
            on = await read_state(bus, "j", None, kept)
            fresh = await read_state(bus, "j", on.at.sequence)
            pairs.append((on, structs.replace(fresh, first=on.first, newest=on.newest)))
        return pairs

    pairs = stage(scenario)
    assert [on == fresh for on, fresh in pairs] == [True] * 4
    assert len({fresh.committed for _, fresh in pairs}) == 4


def test_a_job_that_was_forgotten_and_submitted_again_is_not_read_on_from_the_former(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", TinyChunks)
        worker, bus, kept = await it.worker(), it.broker.connect("reader"), KeptReplays()
        await work_through(it, worker, 3)
        former = await read_state(bus, "j", None, kept)
        it.kill("m0")
        await bus.purge(LOG, subjects.job_log("j"))
        journal = Journal(bus, subjects.job_log("j"), "j", "m1", LogBatch, lambda: 0)
        opened = JobOpened(job="j", spec=it.spec, uid="0000000000b2", timeline=2)
        await journal.append([MasterElected(job="j", term=1, holder="m1"), opened], {})
        return former, await read_state(bus, "j", None, kept)

    former, again = stage(scenario)
    assert former.committed > 0
    assert (again.committed, again.phase, again.members) == (0, "waiting", [])
