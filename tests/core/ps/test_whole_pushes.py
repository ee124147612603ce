"""P3: a push changes all of its tables or none. Memory ends at every step of one; what is refused has changed nothing.

MemoryError is raised between any two lines, or any two bytecodes, of the server's own modules (`memory_ends`): while memory is had,
between two tables, inside an index. A refusal may be repeated, so after it everything must be as before, and the repetition must
come to what an undisturbed server comes to, to the bit. Or HalfChanged is raised, and the server ends.
"""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_ends import MemoryEnds
from moving_slots import Rollout, carry

from rover_bus.ps import messages, snapshots, update
from rover_bus.ps.admission import Fence
from rover_bus.ps.changes import HalfChanged
from rover_bus.ps.exchange import Send
from rover_bus.ps.frame import unpack
from rover_bus.ps.memory import SLACK_BYTES
from rover_bus.ps.spec import Adagrad, Adam, Add, Dense, Growing, Hashed, Normal, RowAdagrad, Sgd
from rover_bus.ps.store import BatchKey

OPTIMIZERS = {
    "sgd": Sgd(rate=0.1),
    "adagrad": Adagrad(rate=0.1),
    "row_adagrad": RowAdagrad(rate=0.1),
    "adam": Adam(rate=0.1),
}


def tables_of(optimizer):
    init, by_row = Normal(0.1), isinstance(optimizer, RowAdagrad)  # not for dense arrays
    return (
        Growing(name="item", width=4, optimizer=optimizer, init=init),
        Growing(name="user", width=4, optimizer=optimizer, init=init, clip=0.5, l2=0.01),
        Hashed(name="word", rows=900, width=2, optimizer=optimizer, init=init),
        Dense(name="w", shape=(300, 7), optimizer=Sgd(rate=0.1) if by_row else optimizer, init=init),
        Growing(name="count", width=1, optimizer=Add(), dtype="int64"),
    )


class World:
    """A server that has trained a little, and the frame of its next push. `moving`: some of its slots are on their way."""

    def __init__(self, cluster_type, optimizer, moving=False, rows=20, follows=True):
        self.cluster = cluster_type(2)
        self.core = self.cluster.cores[0]
        for core in self.cluster.cores.values():
            core.follows_changes = follows
            core.tables.follow_changes()
        self.worker, self.rng = self.cluster.join(), np.random.default_rng(3)
        self.worker.declare(*tables_of(optimizer))
        self.rows, self.number = rows, 0
        for _ in range(2):
            self.train()
        if moving:
            self.order = Rollout(self.cluster).order(0, 1, [(0, 500)])
            for core in self.cluster.cores.values():
                core.follow_moves([self.order])
            for number in (1, 2, 3, 4):
                self.fetch(number)
            self.train()
        self.frame = self.train(held=True)
        self.before = self.digest()

    def fetch(self, number):
        state = self.core.state
        fence = Fence(state.timeline, state.generation, 0, state.incarnation)
        target = (1, self.cluster.cores[1].state.incarnation)
        request = messages.Fetch(fence=fence, move=self.order.move, number=number, target=target)
        carry(self.core, messages.encode(request))

    def train(self, held=False):
        """Train a batch; or return the frame of it for server 0, which is not sent."""
        rng, rows = self.rng, self.rows
        ids = {"item": rng.integers(0, 9 * rows, rows), "user": rng.integers(0, 9 * rows, (rows, 2)),
               "word": rng.integers(0, 900, rows)}  # fmt: skip
        pulled = self.worker.pull(ids)
        draws = {name: rng.standard_normal(value.shape).astype("f4") for name, value in pulled.items()}
        frames, perform = [], self.worker.perform

        def hold(effect):
            if isinstance(effect, Send) and self.worker.routing.servers[effect.position].index == 0:
                frames.append(bytearray(b"".join(effect.frame)))
                return None
            return None if isinstance(effect, Send) else perform(effect)

        if held:
            self.worker.perform = hold
        add = {"count": (np.arange(self.number * 50, self.number * 50 + 99), 1)}
        self.worker.push(BatchKey(0, self.number), draws, add=add)
        self.number += 1
        return frames[0] if held else None

    def push(self, answered=None):
        """Hand the frame in; `answered` is entered while the server is at it."""
        header, body = unpack(self.frame)
        with answered or nullcontext():
            reply = self.core.answer(header, body)
        return messages.decode_reply(unpack(bytearray(b"".join(reply)))[0])

    def digest(self):
        core = self.core
        departing = {m: (d.number, d.copied, d._left()) for m, d in core._departing.items()}
        used = core.tables._budget._used_bytes
        return snapshots.digest(core.tables), core.state, core.version, core.tables.rows, used, departing


def steps_of(world, unit="line"):
    ends = MemoryEnds(-1, unit)
    assert isinstance(world.push(ends), messages.Acked)
    return ends.taken, world.digest()


def judge(world, whole, at_step, unit="line"):
    """Push while memory ends at a step; return what came of it."""
    try:
        reply = world.push(MemoryEnds(at_step, unit))
    except (HalfChanged, MemoryError):
        return "ended"
    if isinstance(reply, messages.Acked):
        assert world.digest() == whole
        return "acked"
    assert reply.code == "not_enough_memory"
    assert world.digest() == world.before
    assert isinstance(world.push(), messages.Acked)
    assert world.digest() == whole
    return "refused"


@pytest.fixture(scope="module")
def judge_at(make_cluster):
    """Let memory end at a share of the push, in a world of its own."""
    undisturbed = {}  # how many steps a push takes, and what it comes to

    def judge_one(share, optimizer, moving, unit="line"):
        key = optimizer, moving, unit
        if key not in undisturbed:
            undisturbed[key] = steps_of(World(make_cluster, OPTIMIZERS[optimizer], moving), unit)
        steps, whole = undisturbed[key]
        return judge(World(make_cluster, OPTIMIZERS[optimizer], moving), whole, 1 + int(share * steps), unit)

    return judge_one


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("moving", [False, True], ids=["still", "moving"])
def test_memory_ends_before_the_first_change_and_after_it(optimizer, moving, judge_at):
    """A fifth of a push only reads; at its end rows have changed, and an error can be nothing but the end of the server."""
    early = [judge_at(share, optimizer, moving) for share in (0.02, 0.1, 0.2)]
    late = [judge_at(share, optimizer, moving) for share in (0.8, 0.9, 0.99)]
    assert (early, late) == (["refused"] * 3, ["ended"] * 3)


@settings(max_examples=15, deadline=None)
@given(
    share=st.floats(0, 1, exclude_max=True),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    moving=st.booleans(),
    unit=st.sampled_from(("line", "opcode")),
)
def test_memory_that_ends_anywhere_in_a_push_changes_nothing_or_ends_the_server(
    judge_at, share, optimizer, moving, unit
):
    assert judge_at(share, optimizer, moving, unit) in ("refused", "ended", "acked")


# -- what is had before the first change is enough ------------------------------------------------------------------------------


class Had:
    """Stands in for `look_for`: notes what was asked for, and what was really used from then on."""

    def __init__(self):
        self.asked = self.before = 0

    def __call__(self, size_bytes):
        self.asked = size_bytes
        tracemalloc.reset_peak()
        self.before = tracemalloc.get_traced_memory()[0]

    def used(self):
        return tracemalloc.get_traced_memory()[1] - self.before


@pytest.mark.parametrize("rows", [20, 3000, 40_000])
@pytest.mark.parametrize("moving", [False, True], ids=["still", "moving"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_a_push_uses_after_its_first_change_was_had_before(
    make_cluster, optimizer, moving, rows, monkeypatch
):
    """numpy's temporaries are counted, and new rows of growing tables; what is left for small objects is far below the slack."""
    world, had = World(make_cluster, OPTIMIZERS[optimizer], moving, rows), Had()
    monkeypatch.setattr(update, "look_for", had)
    tracemalloc.start()
    try:
        assert isinstance(world.push(), messages.Acked)
        used = had.used()
    finally:
        tracemalloc.stop()
    assert had.asked
    assert used < had.asked - SLACK_BYTES // 2


def test_a_push_for_which_nothing_can_be_had_is_refused_and_passes_later(make_cluster, monkeypatch):
    world = World(make_cluster, OPTIMIZERS["adam"])
    _, whole = steps_of(World(make_cluster, OPTIMIZERS["adam"]))
    real, update_look_for = update.look_for, lambda size_bytes: real(1 << 60)
    monkeypatch.setattr(update, "look_for", update_look_for)
    refused = world.push()
    assert refused.code == "not_enough_memory"
    assert "smaller batches" in refused.message
    assert world.digest() == world.before
    monkeypatch.setattr(update, "look_for", real)
    assert isinstance(world.push(), messages.Acked)
    assert world.digest() == whole
