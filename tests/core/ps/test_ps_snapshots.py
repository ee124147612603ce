"""A server's state as arrays and back: the same servers, other servers, other numbers of them; through real shared memory."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rover_bus.events.checkpoints import CutOrder, PartPlace, RestoreOrder
from rover_bus.events.errors import InputError, Refused
from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import ServerStart
from rover_bus.flash.copies import open_exactly
from rover_bus.flash.errors import SlotsBusy
from rover_bus.flash.lineage import digest_staged
from rover_bus.ps import snapshots, spec
from rover_bus.ps.core import ServerCore
from rover_bus.ps.flash_memory import FlashMemory
from rover_bus.ps.routing import divide_slots, owned_slots
from rover_bus.ps.simulated_memory import SharedMemory, SimulatedMemory
from rover_bus.ps.staging import FoundPart, PartMissing, RoomNotPrepared, Stager, assemble
from rover_bus.ps.store import BatchKey

TABLES = (
    spec.Growing(name="user", width=8, optimizer=spec.Adagrad(rate=0.1), init=spec.Normal(0.1)),
    spec.Growing(name="item", width=8, optimizer=spec.Adagrad(rate=0.1), init=spec.Normal(0.1)),
    spec.Hashed(name="zip", rows=300, width=8, optimizer=spec.Adam(rate=0.01), init=spec.Uniform(0.1)),
    spec.Hashed(name="zap", rows=5000, width=8, optimizer=spec.Adam(rate=0.01), init=spec.Uniform(0.1)),
    spec.Dense(name="w", shape=(130, 300), optimizer=spec.Adam(), init=spec.Uniform(0.2)),
    spec.Dense(name="b", shape=(7,), optimizer=spec.Adam(), init=spec.Uniform(0.2)),
    spec.Hashed(name="witness", rows=1000, width=1, optimizer=spec.Add(), dtype="int32"),
)


def train(parameters, first, end, seed=1):
    for number in range(first, end):
        rng = np.random.default_rng((seed, number))
        pulled = parameters.pull(
            {
                "user": rng.integers(0, 400, 20),
                "item": rng.integers(-(2**63), 2**63 - 1, 9),
                "zip": rng.integers(0, 300, 9),
                "zap": rng.integers(0, 5000, 9),
            }
        )
        gradients = {
            name: rng.standard_normal(np.shape(v)).astype("f4") for name, v in sorted(pulled.items())
        }
        ones = {"witness": (np.arange(number * 10, number * 10 + 10), 1)}
        parameters.push(BatchKey(0, number), gradients, add=ones)
    parameters.flush()


@pytest.fixture
def trained(make_cluster):
    def make(servers, batches=30):
        made = make_cluster(servers)
        for core in made.cores.values():
            core.follows_changes = True
            core.tables.follow_changes()
        parameters = made.join(in_flight=0)
        parameters.declare(*TABLES)
        train(parameters, 0, batches)
        return made

    return make


def found(core):
    """What a reader gets of a part: copies."""
    taken = core.snapshot()
    return FoundPart({name: array.copy() for name, array in taken.arrays.items()}, taken.extra, "memory")


def test_p21_a_part_of_another_cut_of_the_same_number_is_not_believed(trained):
    [core] = trained(1).cores.values()
    taken = core.snapshot(identity=5)
    part = FoundPart(dict(taken.arrays), taken.extra, "memory")
    slots = np.arange(4096)
    assert assemble([part], msgspec.structs.replace(ORDER, identity=5), slots)
    with pytest.raises(PartMissing, match="which the log has lost"):
        assemble([part], msgspec.structs.replace(ORDER, identity=6), slots)


def test_p21_a_cut_of_the_same_number_at_another_place_in_the_data_is_staged_anew(trained):
    [core] = trained(1).cores.values()
    stager = Stager(SimulatedMemory(SharedMemory(), 0), lambda: 0.0)
    order = CutOrder(cut=1, identity=5)
    stager.stage(core, order)
    assert not stager.is_due(order)
    assert stager.is_due(CutOrder(cut=1, identity=6))


def sums(*all_tables):
    total = {}
    for tables in all_tables:
        for name, number in snapshots.digest(tables).items():
            total[name] = (total.get(name, 0) + number) % 2**64
    return total


ORDER = RestoreOrder(uid="u", timeline=0, generation=0, cut=1)


def restored(parts, servers, order=ORDER):
    """New cores that hold the cut."""
    table = divide_slots([ServerAddress(index, 9, []) for index in range(servers)], 0, 1)
    cores = []
    for index in range(servers):
        core = ServerCore(index, 9)
        core.admit(timeline=0, generation=1, start=ServerStart("cut", cut=1), seed=7)
        core.load(assemble(parts, order, owned_slots(table, index))[0])
        core.route(table)
        cores.append(core)
    return cores


def test_values_of_rows_may_be_rounded_and_nothing_else(trained):
    [core] = trained(1).cores.values()
    taken = core.snapshot()
    described = snapshots.describe(taken.extra)
    tables = {f"{family.number}.0": set(family.layout) for family in described.families}
    rounded = snapshots.may_be_rounded(taken.extra)
    assert {name for array in rounded for name in tables[array]} == {"user", "item", "zip", "zap"}
    assert snapshots.may_be_rounded(b"somebody else's") == frozenset()


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 1), (1, 4), (2, 5), (4, 2)])
def test_s24_parts_of_n_servers_restore_onto_m_with_equal_digests(trained, before, after):
    old = trained(before)
    parts = [found(core) for core in old.cores.values()]
    new = restored(parts, after)
    assert sums(*(core.tables for core in new)) == sums(*(core.tables for core in old.cores.values()))
    for core in new:
        held = [group.applied[0].count for group in core.state.groups]
        assert held == [30] * len(held)
        assert (
            snapshots.ranges_of(core.tables.owned)
            == tuple(sorted(each for group in core.state.groups for each in group.slots))
            or len(core.state.groups) == 1
        )


@pytest.mark.parametrize("after", [2, 3])
def test_training_goes_on_after_a_restore_as_if_nothing_had_happened(trained, make_cluster, after):
    old, other = trained(2), make_cluster(after)
    for core, new in zip(
        restored([found(core) for core in old.cores.values()], after), other.cores, strict=True
    ):
        core.state = msgspec.structs.replace(
            core.state, incarnation=new + 1, generation=0, routing=other.routing
        )
        other.cores[new] = core
    for cluster in (old, other):
        parameters = cluster.join(in_flight=0)
        parameters.declare(*TABLES)
        train(parameters, 25, 40)  # five of them are repeats
    assert sums(*(c.tables for c in old.cores.values())) == sums(*(c.tables for c in other.cores.values()))


def test_a_part_that_lacks_a_slot_is_refused_by_name(trained):
    first, _ = trained(2).cores.values()
    with pytest.raises(InputError, match="slot 2048 is in no part"):
        restored([found(first)], 1)


def test_another_jobs_model_comes_without_its_applied_sets_and_its_witness(trained):
    [core] = trained(1).cores.values()
    foreign = msgspec.structs.replace(ORDER, foreign=True)
    [new] = restored([found(core)], 1, foreign)
    assert new.state.groups[0].applied == {}
    ours, theirs = snapshots.digest(new.tables), snapshots.digest(core.tables)
    assert set(theirs) - set(ours) == {"witness"}
    assert {name for name in ours if ours[name] != theirs[name]} == set()
    longer = msgspec.structs.replace(TABLES[-1], rows=3000)
    new.tables.declare([longer, spec.Growing(name="more", width=8, optimizer=spec.Adagrad(rate=0.1))])
    ids, values = new.tables.export("witness")
    assert (len(ids), values.any()) == (3000, False), "a job of another length has a witness of its own size"
    tags = [entry.tag for entry in new.tables.catalogue.entries.values()]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("extra", [b"", b"\x00", msgspec.msgpack.encode({"seed": 1})])
def test_bytes_that_describe_nothing_are_refused(extra):
    with pytest.raises(InputError, match="use another cut"):
        snapshots.open_part({}, extra)


def test_arrays_of_another_shape_are_refused(trained):
    [core] = trained(1).cores.values()
    part = found(core)
    broken = {name: array[:-1] for name, array in part.arrays.items()}
    with pytest.raises(InputError, match="use another cut"):
        snapshots.open_part(broken, part.extra)


def test_a_server_that_serves_takes_over_no_other_state(trained):
    first, second = trained(2).cores.values()
    with pytest.raises(Refused, match="serves already"):
        second.load(snapshots.open_part(*found(first)[:2]))


# -- through shared memory ---------------------------------------------------------------------------------------------------


@pytest.fixture
def root():
    directory = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def stage(stager, core, cut, complete=0):
    order = CutOrder(cut=cut, complete=complete)
    assert stager.is_due(order)
    for _ in range(2):
        try:
            stager.stage(core, order)
            break
        except RoomNotPrepared:
            asyncio.run(stager.prepare(order))
    assert stager.staged.problem == ""
    assert not stager.is_due(order)
    return stager.staged


def digest(root, cut):
    """The daemon of the host makes the digests of what was staged: from then on it is a source."""
    while True:
        try:
            digest_staged(open_exactly(root / "u", "ps-0", 0, cut))
            return
        except SlotsBusy:  # its touched-link is written behind training's back
            time.sleep(0.01)


def order_of(cut, core):
    place = PartPlace(part="ps-0", index=0, incarnation=1, host="h", slots=list(core.snapshot().slots))
    return RestoreOrder(uid="u", timeline=5, generation=0, cut=cut, parts=[place])


def test_the_next_life_of_a_server_finds_what_the_former_staged(trained, root):
    cluster = trained(1)
    [core] = cluster.cores.values()
    parameters = cluster.join(in_flight=0)
    parameters.declare(*TABLES)
    memory = FlashMemory(root, "u", 0, 5)
    stager = Stager(memory, lambda: 0.0)
    whole = stage(stager, core, 1).copied_bytes
    digests = {}
    for cut in range(2, 7):  # tables outgrow their slots meanwhile
        train(parameters, 30 * cut, 30 * cut + 30)
        copied = stage(stager, core, cut, complete=cut - 1).copied_bytes
        digest(root, cut)
        digests[cut] = sums(core.tables)
    assert copied > 0
    assert whole > 0
    asyncio.run(memory.tidy())
    assert len(list((root / "u").glob("*.slot"))) <= 4
    memory.close()

    again = Stager(FlashMemory(root, "u", 0, 5), lambda: 0.0)
    for cut in (5, 6):
        new = ServerCore(0, 2)
        new.follows_changes = True
        new.admit(timeline=0, generation=1, start=ServerStart("cut", cut=cut), seed=7)
        again.restore(new, order_of(cut, core), core.tables.owned)
        assert again.restored.problem == ""
        assert again.restored.source == "memory"
        assert sums(new.tables) == digests[cut]
    new.route(divide_slots([ServerAddress(0, 2, [])], 0, 1))
    for cut in (7, 8, 9):  # the slot that it lives in is made up for
        stage(again, new, cut, complete=cut - 1)
    again.memory.close()


def test_staged_parts_have_room_to_grow_for_tables_that_grow_and_for_no_others(make_cluster, root):
    fixed = spec.Hashed(name="big", rows=400_000, width=16, optimizer=spec.Sgd(0.1))
    grows = spec.Growing(name="more", width=16, optimizer=spec.Sgd(0.1))
    for table, headroom in ((fixed, 0.0), (grows, 0.5)):
        cluster = make_cluster(1)
        [core] = cluster.cores.values()
        parameters = cluster.join(in_flight=0)
        parameters.declare(table)
        ids = np.arange(400_000)
        parameters.push(
            BatchKey(0, 0),
            {table.name: np.ones((len(ids), 16), "f4")},
            pulled=parameters.pull({table.name: ids}),
        )
        parameters.flush()
        memory = FlashMemory(root / table.name, "u", 0, 5)
        stager = Stager(memory, lambda: 0.0)
        wanted = stager.unstaged_bytes(core)
        stage(stager, core, 1)
        assert wanted == sum(path.stat().st_size for path in (root / table.name / "u").glob("*.slot"))
        assert stager.unstaged_bytes(core) == 0
        held = sum(array.nbytes for array in core.snapshot().arrays.values())
        slots = [path.stat().st_size for path in (root / table.name / "u").glob("*.slot")]
        assert len(slots) == 2
        assert max(slots) == pytest.approx((1 + headroom) * held, rel=0.1)
        memory.close()


def test_touched_rows_alone_are_copied_again(make_cluster, root):
    cluster = make_cluster(1)
    [core] = cluster.cores.values()
    core.tables.follow_changes()
    parameters = cluster.join(in_flight=0)
    table = spec.Hashed(name="big", rows=200_000, width=8, optimizer=spec.Adagrad(), init=spec.Normal(0.1))
    parameters.declare(table)
    memory = FlashMemory(root, "u", 0, 5)
    stager, rng = Stager(memory, lambda: 0.0), np.random.default_rng(3)
    copied = []
    for cut in range(1, 6):
        pulled = parameters.pull({"big": rng.integers(0, 200_000, 500)})
        parameters.push(BatchKey(0, cut), {"big": np.ones_like(pulled["big"])})
        parameters.flush()
        copied.append(stage(stager, core, cut, complete=cut - 1).copied_bytes)
        digest(root, cut)
    assert copied[-1] < copied[0] / 50
    new = ServerCore(0, 2)
    new.admit(timeline=0, generation=1, start=ServerStart("cut", cut=5), seed=7)
    memory.close()
    again = Stager(FlashMemory(root, "u", 0, 5), lambda: 0.0)
    again.restore(new, order_of(5, core), core.tables.owned)
    assert sums(new.tables) == sums(core.tables)
    again.memory.close()


def test_training_a_restored_server_does_not_change_what_is_staged(trained, root):
    cluster = trained(1)
    [core] = cluster.cores.values()
    stager = Stager(FlashMemory(root, "u", 0, 5), lambda: 0.0)
    stage(stager, core, 1)
    digest(root, 1)
    stager.memory.close()
    before = sums(core.tables)
    for _ in range(2):
        reader = Stager(FlashMemory(root, "u", 0, 5), lambda: 0.0)
        new = ServerCore(0, 2)
        new.admit(timeline=0, generation=1, start=ServerStart("cut", cut=1), seed=7)
        reader.restore(new, order_of(1, core), core.tables.owned)
        assert sums(new.tables) == before
        for _, store in new.tables.families():
            store.rows.values[:] = 0
        reader.memory.close()


def test_a_cut_of_another_life_of_the_job_is_not_taken_for_ours(trained, root):
    [core] = trained(1).cores.values()
    stager = Stager(FlashMemory(root, "u", 0, 6), lambda: 0.0)
    stage(stager, core, 1)
    new = ServerCore(0, 2)
    new.admit(timeline=0, generation=1, start=ServerStart("cut", cut=1), seed=7)
    stager.restore(new, order_of(1, core), core.tables.owned)
    assert "never stored" in stager.restored.problem
    stager.memory.close()
