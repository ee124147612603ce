"""What a daemon does next for the checkpoints of its host: orders are answered once, and no cut that is over is worked on."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.checkpoints import ManifestContent, PartPlace
from rover_bus.events.deciding import WakeAt
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.host_facts import HostStorageOpened
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec
from rover_bus.events.settings import DEFAULTS
from rover_bus.node.storage import decider
from rover_bus.node.storage.decider import Begin, CallOff, GiveUp, is_being_digested, sources
from rover_bus.node.storage.evolution import FETCH_PATIENCE_S, evolve
from rover_bus.node.storage.holders import choose_holders
from rover_bus.node.storage.state import (
    Begun,
    CalledOff,
    Done,
    Failed,
    GivenUp,
    PartFound,
    PartNeeded,
    Persisting,
    StorageTask,
)
from rover_bus.node.storage.throttle import Pacing

ME, OTHER = "host-a", "host-b"


def place(index=0, host=ME):
    return PartPlace(part=f"ps-{index}", index=index, incarnation=1, host=host, slots=[(0, 4096)])


def about(cut, generation=0):
    return {"job": "ads", "uid": "u1", "timeline": 7, "cut": cut, "generation": generation}


def staged(cut, index=0, host=ME, generation=0):
    return cuts.PartStaged(place=place(index, host), **about(cut, generation))


def ordered(cut, *places, term=1, generation=0):
    parts = list(places) or [place()]
    return cuts.CheckpointPersistOrdered(parts=parts, path="/s", term=term, **about(cut, generation))


def manifest(cut, host=ME, term=1):
    content = ManifestContent(uid="u1", timeline=7, generation=0, cut=cut, ledger=b"", parts=[])
    return cuts.CheckpointManifestOrdered(host=host, path="/s", manifest=content, term=term, **about(cut))


def ready(cut):
    return cuts.CheckpointReady(path="/s", **about(cut))


def superseded(cut):
    return cuts.CheckpointSuperseded(newer=cut + 1, **about(cut))


def task(step, cut, part="ps-0"):
    return StorageTask("ads", "u1", step, cut, 0, part)


def decide(state, now_s):
    """Return what is to be done now, without when to decide again."""
    return [each for each in decider.decide(state, now_s) if not isinstance(each, WakeAt)]


def next_wake_s(state):
    return next((each.at_s for each in decider.decide(state, 0.0) if isinstance(each, WakeAt)), None)


@pytest.fixture
def state():
    spec = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec(keep=2))
    return evolve(Persisting(ME), JobSubmitted(job="ads", uid="u1", spec=spec))


def after(state, *events):
    for event in events:
        state = evolve(state, event)
    return state


def doing(state, now_s=0.0):
    return [action.task for action in decide(state, now_s) if isinstance(action, Begin)]


def did(state, task):
    return after(state, Begun(task), Done(task))


def test_a_part_that_is_staged_here_is_digested_and_one_elsewhere_is_not_ours(state):
    assert doing(after(state, staged(3))) == [task("digest", 3)]
    assert doing(after(state, staged(3, host=OTHER))) == []


def pinned(state, cut):
    """The order of a cut came, and its part is held against overwriting."""
    return did(after(state, ordered(cut)), task("pin", cut))


def test_what_is_ordered_is_pinned_and_digested_before_it_is_stored(state):
    state = after(state, ordered(3, place(0), place(1, OTHER)))
    assert doing(state) == [task("pin", 3), task("digest", 3)]
    state = did(state, task("pin", 3))
    assert doing(state) == [task("digest", 3)]
    state = did(state, task("digest", 3))
    assert doing(state) == [task("persist", 3)]
    assert doing(did(state, task("persist", 3))) == []


def test_digests_go_on_while_a_slow_disk_is_written(state):
    state = after(did(pinned(state, 3), task("digest", 3)), Begun(task("persist", 3)), staged(4))
    assert doing(state) == [task("digest", 4)]


def test_what_was_done_for_the_cut_that_a_slow_disk_writes_is_not_done_again_when_a_newer_one_is_superseded(
    state,
):
    state = did(did(pinned(state, 3), task("digest", 3)), task("persist", 3))
    state = did(after(state, staged(4)), task("digest", 4))
    state = after(state, manifest(3), Begun(task("manifest", 3)), staged(5), superseded(4))
    assert doing(state) == [task("digest", 5)], "cut 3 is not pinned again: its slot is overwritten by now"
    state = after(
        state, Done(task("manifest", 3)), ready(3), Begun(task("digest", 5)), Done(task("digest", 5))
    )
    assert doing(state) == [task("prune", 3, "")]
    assert not [each for each in after(state, superseded(5)).done if each.cut < 3]


def test_an_order_of_a_lower_term_is_stale(state):
    state = after(state, ordered(3, term=2), ordered(4, term=1))
    assert state.stale == 1
    assert doing(state) == [task("pin", 3), task("digest", 3)]


def test_the_same_order_again_changes_nothing(state):
    state = did(did(pinned(state, 3), task("digest", 3)), task("persist", 3))
    assert doing(after(state, ordered(3), ordered(3, term=2))) == []


def test_what_runs_for_a_cut_that_is_over_is_called_off_and_not_begun_again(state):
    state = after(did(pinned(state, 3), task("digest", 3)), Begun(task("persist", 3)), superseded(3))
    assert decide(state, 0.0) == [CallOff(task("persist", 3))]
    assert decide(after(state, CalledOff(task("persist", 3))), 0.0) == []


def test_the_host_that_is_named_writes_the_manifest_and_prunes_after_the_log_says_ready(state):
    assert doing(after(state, manifest(3, OTHER), ready(3))) == []
    state = after(state, manifest(3))
    assert doing(state) == [task("manifest", 3, "")]
    state = did(state, task("manifest", 3, ""))
    assert doing(state) == []
    state = after(state, ready(3))
    assert doing(state) == [task("prune", 3, "")]
    assert doing(did(state, task("prune", 3, ""))) == []


def test_a_failure_that_may_pass_is_tried_again_ever_more_slowly_and_given_up_at_last(state):
    persist = task("persist", 3)
    state, now_s, tries = did(pinned(state, 3), task("digest", 3)), 0.0, 0
    while not any(isinstance(action, GiveUp) for action in decide(state, now_s)):
        if persist in doing(state, now_s):
            tries += 1
            state = after(state, Begun(persist), Failed(persist, "disk full", True, now_s))
            assert doing(state, now_s) == []
        now_s = max(now_s, next_wake_s(state) or now_s)
    assert tries < 12
    assert now_s == pytest.approx(DEFAULTS.storage.patience_s, abs=15.0)
    assert decide(state, now_s) == [GiveUp(persist, "disk full")]
    state = after(state, GivenUp(persist))
    assert (decide(state, now_s), next_wake_s(state)) == ([], None)


def test_a_failure_that_cannot_pass_is_said_at_once_and_the_next_cut_is_stored(state):
    persist = task("persist", 3)
    state = did(pinned(state, 3), task("digest", 3))
    state = after(state, Begun(persist), Failed(persist, "not staged", False, 5.0))
    assert decide(state, 5.0) == [GiveUp(persist, "not staged")]
    assert doing(after(state, GivenUp(persist), ordered(4)), 5.0) == [task("pin", 4), task("digest", 4)]


def test_a_job_that_is_over_is_swept_until_nobody_holds_its_memory(state):
    state = after(state, staged(3), JobEnded(job="ads", state="completed"))
    sweep = StorageTask("ads", "u1", "sweep")
    assert doing(state) == [sweep]
    state = after(state, Begun(sweep), Failed(sweep, "held", True, 0.0))
    assert doing(state, 0.0) == []
    assert doing(state, next_wake_s(state)) == [sweep]
    assert doing(did(state, sweep)) == []


def ended(state):
    return evolve(state, JobEnded(job="ads", state="completed"))


def submitted(state, uid):
    spec = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec(path="/s2"))
    return evolve(state, JobSubmitted(job="ads", uid=uid, spec=spec))


@pytest.mark.parametrize("step", ["mirror", "parity", "fetch", "digest"])
def test_memory_is_swept_after_the_last_thread_that_writes_there_and_never_beside_it(state, step):
    """A copy that began before the end of its job came to lie in a directory that was swept already, and stayed for ever."""
    working = task(step, 3)
    state = ended(after(state, Begun(working)))
    assert decide(state, 0.0) == [CallOff(working)]
    for leaves in (CalledOff(working), Done(working), Failed(working, "gone", True, 0.0)):
        assert doing(evolve(state, leaves)) == [StorageTask("ads", "u1", "sweep")]


def test_a_newer_job_of_the_name_goes_on_while_the_memory_of_the_former_is_still_held(state):
    sweep = StorageTask("ads", "u1", "sweep")
    state = submitted(after(ended(state), Begun(sweep), Failed(sweep, "held", True, 0.0)), "u2")
    newer = replace(staged(3), uid="u2")
    state = evolve(state, newer)
    assert doing(state, 0.0) == [StorageTask("ads", "u2", "digest", 3, 0, "ps-0")]
    state = after(state, Begun(sweep), Done(sweep))
    assert doing(state, 0.0) == [StorageTask("ads", "u2", "digest", 3, 0, "ps-0")]


def test_a_job_whose_end_was_never_seen_is_swept_when_a_newer_one_has_its_name(state):
    assert StorageTask("ads", "u1", "sweep") in doing(submitted(state, "u2"))


def test_what_is_still_published_about_a_job_that_has_ended_changes_nothing(state):
    """A late fact of the former run replaced what was known of its successor, the path of its checkpoints among it."""
    sweep = StorageTask("ads", "u1", "sweep")
    for so_far in (ended(state), did(ended(state), sweep), submitted(state, "u2")):
        for each in (digested(3), staged(3), ordered(3), ready(3)):
            assert evolve(so_far, each) == so_far
        assert evolve(so_far, PartNeeded("ads", "u1", "ps-0", 3, 0)) == so_far


def test_a_job_that_the_broker_tells_once_more_is_as_alive_as_what_follows_says(state):
    state = submitted(did(ended(state), StorageTask("ads", "u1", "sweep")), "u1")
    assert doing(evolve(state, staged(3))) == [task("digest", 3)]
    assert doing(ended(state)) == [StorageTask("ads", "u1", "sweep")]


def test_after_a_restart_what_lies_in_memory_is_digested_and_the_newest_order_answered_again(state):
    state = after(state, ordered(3), PartFound("u1", "ps-0", 3, 0), PartFound("u2", "ps-0", 9, 0))
    assert doing(state) == [task("digest", 3), task("pin", 3)]
    state = did(state, task("pin", 3))
    assert doing(state) == [task("digest", 3)]
    assert doing(did(state, task("digest", 3))) == [task("persist", 3)]


@given(st.integers(0, 2**32))
@example(9050)  # a digest is given up while its part is ordered
def test_in_any_history_each_step_of_a_cut_is_done_once_and_in_order(seed):
    """Threads succeed, fail and are called off at random while cuts are staged, ordered and closed at random."""
    dice = random.Random(seed)
    state = evolve(Persisting(ME), staged(1))
    now_s, cut, done, running = 0.0, 1, [], set()
    for _ in range(80):
        now_s += dice.random() * 5
        match dice.randrange(6):
            case 0:
                cut += 1
                state = evolve(state, staged(cut, dice.randrange(2)))
            case 1:
                state = evolve(state, ordered(cut, place(0), place(1), place(2, OTHER)))
            case 2:
                state = evolve(state, manifest(cut, dice.choice([ME, OTHER])))
            case 3:
                state = evolve(state, dice.choice([ready, superseded])(dice.randint(1, cut)))
            case _ if running:
                each = dice.choice(sorted(running))
                running.discard(each)
                if dice.randrange(3):
                    done.append(each)
                    state = evolve(state, Done(each))
                else:
                    state = evolve(state, Failed(each, "full", True, now_s))
        for action in decide(state, now_s):
            match action:
                case Begin(each):
                    assert each.lane not in {other.lane for other in running}
                    running.add(each)
                    state = evolve(state, Begun(each))
                case CallOff(each):
                    running.discard(each)
                    state = evolve(state, CalledOff(each))
                case GiveUp(each, _):
                    state = evolve(state, GivenUp(each))
    assert state.running == running
    once = [each for each in done if each.step in ("pin", "persist", "manifest")]
    assert len(once) == len(set(once)), f"seed {seed}: done twice"
    for at, each in enumerate(done):
        if each.step == "persist":
            before = [
                other
                for other in done[:at]
                if (other.step, other.of, other.part) == ("digest", each.of, each.part)
            ]
            assert before, f"seed {seed}: {each} without digests"


@given(st.floats(1e3, 1e9), st.lists(st.integers(1, 1 << 22), min_size=1, max_size=60))
def test_a_rate_is_kept_over_any_writes(rate_bytes, sizes):
    pacing, now_s = Pacing(rate_bytes), 100.0
    for size in sizes:
        now_s += pacing.take(size, now_s)
    assert now_s - 100.0 >= sum(sizes) / rate_bytes - 0.26
    assert now_s - 100.0 <= sum(sizes) / rate_bytes + 1e-3


def test_no_rate_is_no_wait():
    assert Pacing(0).take(1 << 40, 0.0) == 0.0


def test_copies_go_to_other_failure_domains_first_and_never_to_the_owner():
    domains = {"a": "rack1", "b": "rack1", "c": "rack2", "d": "rack2"}
    for part in map("ps-{}".format, range(20)):
        (one,) = choose_holders(part, "a", domains, 1)
        assert domains[one] == "rack2"
        assert "b" in choose_holders(part, "a", domains, 3)
        assert sorted(choose_holders(part, "a", domains, 9)) == ["b", "c", "d"]
    assert choose_holders("ps-0", "a", {"a": "rack1"}, 1) == []
    assert {choose_holders(f"ps-{index}", "a", domains, 1)[0] for index in range(20)} == {"c", "d"}


def test_a_host_that_goes_moves_only_the_copies_that_it_held():
    domains = {host: host for host in "abcdef"}
    fewer = {host: host for host in "abcde"}
    for part in map("ps-{}".format, range(50)):
        before = choose_holders(part, "a", domains, 1)
        assert before == ["f"] or choose_holders(part, "a", fewer, 1) == before


def registered(host):
    return HostStorageOpened(host=host, daemon=host, serves_parts_at=f"{host}:1", domain=host)


def digested(cut, host=OTHER):
    return cuts.HostPartDigested(host=host, job="ads", uid="u1", cut=cut, generation=0, part="ps-0")


def test_the_chosen_host_copies_what_another_host_has_digested(state):
    spec = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec(copies=1))
    state = after(state, JobSubmitted(job="ads", uid="u1", spec=spec), registered(ME), registered(OTHER))
    state = after(state, digested(3))
    assert doing(state) == [task("mirror", 3)]
    state = after(did(state, task("mirror", 3)), digested(4))
    assert doing(state) == [task("mirror", 4)]
    assert doing(after(state, digested(5, ME))) == []
    assert sources(state, "ads", "ps-0", (0, 4)) == ["host-b:1"]


def test_beside_a_server_only_what_is_beside_servers_of_its_run_now_holds_copies_of_it():
    """Agents in servers' pods go with them: one that was there counts no more once another has staged its part."""
    spec = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec(copies=1))
    opened = [
        HostStorageOpened(host=host, daemon="d", serves_parts_at=f"{host}:1", run=run)
        for host, run in ((ME, "u1"), (OTHER, "u1"), ("gone", "u1"), ("of-u2", "u2"), ("node", ""))
    ]
    state = after(Persisting(ME, run="u1"), JobSubmitted(job="ads", uid="u1", spec=spec), *opened)
    assert set(state.peers) == {ME, OTHER, "gone"}
    mine = cuts.HostPartDigested(host=ME, job="ads", uid="u1", cut=3, generation=0, part="ps-1")
    assert doing(after(state, digested(3), mine)) == [task("mirror", 3)], "of two there are two holders"
    assert set(after(Persisting("node"), *opened).peers) == {"node"}, "nodes hold nothing in servers' pods"


def test_what_is_beside_a_server_searches_the_storage_of_its_job_whichever_host_is_asked():
    """Its storage is its pods' own: the node that the master names has no way to it."""
    search = cuts.CheckpointSearchOrdered(job="ads", uid="u1", search=1, host="node", path="/s", term=1)
    assert [each.step for each in doing(after(Persisting(ME, run="u1"), search))] == ["search"]
    assert doing(after(Persisting(ME), search)) == []


def test_no_copy_is_made_that_nobody_asked_for(state):
    assert doing(after(state, registered(ME), registered(OTHER), digested(3))) == []


def test_a_server_that_waits_for_its_part_is_not_kept_waiting_for_daemons_that_stay_away(state):
    fetch, now_s, tries = task("fetch", 2, "ps-1"), 0.0, 0
    state = after(state, PartNeeded("ads", "u1", "ps-1", 2, 0))
    while GiveUp(fetch, "cannot be reached") not in decide(state, now_s):
        assert doing(state, now_s) == [fetch]
        tries += 1
        state = after(state, Begun(fetch), Failed(fetch, "cannot be reached", True, now_s))
        now_s = next_wake_s(state) or now_s
    assert tries > 3
    assert now_s == pytest.approx(FETCH_PATIENCE_S, abs=1.0)


def test_a_server_that_asks_gets_its_part_fetched_before_any_other_copy_and_digests_wait_for_nothing(state):
    state = after(
        state,
        staged(3),
        registered(ME),
        registered(OTHER),
        digested(4),
        PartNeeded("ads", "u1", "ps-1", 2, 0),
    )
    fetch = task("fetch", 2, "ps-1")
    assert doing(state) == [task("digest", 3), fetch]
    state = after(state, Begun(fetch), Failed(fetch, "nobody has it", False, 0.0))
    assert GiveUp(fetch, "nobody has it") in decide(state, 0.0)
    state = after(state, GivenUp(fetch))
    assert doing(state) == [task("digest", 3)]
    assert doing(after(state, PartNeeded("ads", "u1", "ps-1", 2, 0))) == [task("digest", 3), fetch]


def test_the_youngest_cut_is_digested_first_also_when_it_is_closed_already(state):
    """Without digests it is no source, whatever became of it on its way to storage."""
    state = after(state, ordered(3), staged(4), superseded(4))
    assert doing(state) == [task("digest", 4), task("pin", 3)]
    state = did(state, task("digest", 4))
    assert doing(state) == [task("pin", 3), task("digest", 3)]


def test_a_part_that_is_staged_once_more_for_its_cut_is_digested_once_more(state):
    state = did(after(state, staged(3)), task("digest", 3))
    assert doing(state) == []
    assert doing(after(state, staged(3))) == [task("digest", 3)]


def test_digests_that_are_to_come_are_told_from_those_that_will_never_be(state):
    digest = task("digest", 3)
    state = after(state, staged(3))
    assert is_being_digested(state, digest)
    assert not is_being_digested(state, task("digest", 2))
    failed = after(state, Begun(digest), Failed(digest, "damaged", False, 0.0))
    assert not is_being_digested(failed, digest)
    assert not is_being_digested(did(state, digest), digest)


def test_what_a_server_was_refused_is_not_looked_for_again_when_newer_cuts_end(state):
    """The server went on without it long ago; whoever still looks for it does so for ever, and says so every few seconds."""
    fetch = task("fetch", 2, "ps-1")
    state = after(
        state,
        PartNeeded("ads", "u1", "ps-1", 2, 0),
        Begun(fetch),
        Failed(fetch, "nobody has it", False, 0.0),
    )
    state = after(state, GivenUp(fetch), superseded(5))
    assert fetch not in doing(state)


# -- parity ------------------------------------------------------------------------------------------------------------


def test_the_holder_of_a_group_keeps_its_parity_up_once_every_part_of_the_cut_is_digested():
    third = "host-c"
    spec = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec(parity=1))
    places = [place(0, OTHER), place(1, third)]
    state = evolve(Persisting(ME), JobSubmitted(job="ads", uid="u1", spec=spec))
    for host in (ME, OTHER, third):
        state = evolve(state, HostStorageOpened(host=host, daemon="d", serves_parts_at=f"{host}:1"))
    state = evolve(state, cuts.CheckpointStaged(parts=places, **about(4)))
    assert decide(state, 0.0) == []
    for each in places:
        stamp = {"host": each.host, "job": "ads", "uid": "u1", "cut": 4, "generation": 0, "part": each.part}
        assert decide(state, 0.0) == []
        state = evolve(state, cuts.HostPartDigested(**stamp))
    assert decide(state, 0.0) == [Begin(StorageTask("ads", "u1", "parity", 4, 0, "ps-0"))]


# -- the last cut before a host leaves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        (CheckpointSpec(), True),
        (CheckpointSpec(persist=False, copies=1), True),
        (CheckpointSpec(persist=False), False),
    ],
)
def test_a_cut_is_safe_when_it_is_ready_or_redundant_and_not_before(spec, waits):
    job = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=spec)
    state = evolve(Persisting(ME), JobSubmitted(job="ads", uid="u1", spec=job))
    assert not state.jobs["ads"].can_be_safe  # no cut was ever opened
    for cut in (1, 2):
        state = evolve(state, cuts.CheckpointOpened(**about(cut)))
    known = state.jobs["ads"]
    assert (known.can_be_safe, known.opened, known.safe) == (waits, (0, 2), (-1, 0))
    state = evolve(state, cuts.CheckpointStaged(parts=[place()], **about(2)))
    assert state.jobs["ads"].safe == (-1, 0)
    state = evolve(state, cuts.CheckpointReady(path="/s", **about(1)))
    assert state.jobs["ads"].safe == (0, 1)
    state = evolve(state, cuts.CheckpointRedundant(**about(2)))
    assert state.jobs["ads"].safe == (0, 2)
