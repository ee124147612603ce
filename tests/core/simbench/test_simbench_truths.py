"""What a job really does in the simulator: slow workers, hosts, cores, input, memory, and users who stop it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation import foreign_worlds, worlds
from bench.simulation.generator import generate
from bench.simulation.jobs import Job, pooled
from bench.simulation.memory_laws import Heaps, Saturation, Steps, TwoRegimes, draw_law
from bench.simulation.nodes import Machines
from bench.simulation.policies.live import LiveBrain
from bench.simulation.policies.oracle import Knowing
from bench.simulation.port import FloatArray, Hosts, Mechanisms, Mode, Needs, Size, TableLaw, Wanted
from bench.simulation.runtime import Runtime
from bench.simulation.weather import Weather
from bench.simulation.world import World
from rover_bus.brain.models.hazard import LossCount

ONE_SLOW = np.array([1.0, 1.0, 0.5, 1.0])


def test_a_synchronous_job_waits_for_its_slowest_worker_unless_that_has_less_work() -> None:
    assert pooled(ONE_SLOW, "sync") == 0.5
    assert pooled(ONE_SLOW, "sync", {2}) == pytest.approx(0.875), "the best split"
    assert pooled(ONE_SLOW, "async") == pytest.approx(0.875)


@given(
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8),
    st.sets(st.integers(0, 7)),
)
def test_no_split_of_work_makes_a_synchronous_job_faster_than_its_workers_together(
    paces: list[float], less: set[int]
) -> None:
    speed = pooled(np.array(paces), "sync", less)
    assert min(paces) * (1 - 1e-9) <= speed <= np.mean(paces) * (1 + 1e-9)


@pytest.mark.parametrize(
    "law",
    [Heaps(0.5), Steps((0.2, 0.5, 0.9), 0.7), Saturation(0.2), TwoRegimes(0.5, 3.0), TwoRegimes(0.3, 1 / 3)],
)
def test_tables_never_shrink_and_end_at_their_final_size(law: TableLaw) -> None:
    sizes = [law.grown(share) for share in np.linspace(0, 1, 101)]
    assert sizes[0] == pytest.approx(0.2)
    assert sizes[-1] == pytest.approx(1.0)
    assert np.all(np.diff(sizes) >= 0)


def test_families_grow_by_all_four_laws() -> None:
    drawn = {type(draw_law(np.random.default_rng(seed))) for seed in range(40)}
    assert drawn == {Heaps, Steps, Saturation, TwoRegimes}


def job(mode: Mode = "async", hosts: Hosts | None = None) -> Job:
    workload = generate(worlds.W1(), 3, jobs=20)
    case = next(c for c in workload.cases if c.mode == mode)
    return Job(case, np.random.default_rng(0), workload.references[case.name], hosts or workload.hosts)


def slow_host(at_s: float) -> FloatArray:
    return np.array([1.0, 0.5 if at_s < 100 else 1.0])


def test_a_worker_runs_at_its_hosts_pace_while_the_host_is_slow() -> None:
    found = job(hosts=Hosts(np.full(2, 32.0), np.full(2, 256.0), slow_host))
    found.crew(4, Weather(worker_spread=0.0), {0: (2, 1), 1: (2, 0)})
    assert found.paces(0.0).tolist() == [1.0, 1.0, 0.5, 0.5]
    assert found.paces(200.0).tolist() == [1.0] * 4
    assert found.spread(0.0) == pytest.approx(0.75)


def test_a_worker_that_stays_keeps_its_pace_when_others_leave_its_job() -> None:
    found = job()
    found.crew(4, Weather(), {0: (2, 1), 1: (2, 0)})
    stays = found.own[2:].tolist()
    found.crew(2, Weather(), {1: (2, 1)})
    assert found.own.tolist() == stays
    assert found.on == [1, 1]


def test_a_slow_spell_ends_and_leaves_the_worker_as_fast_as_it_is_for_good() -> None:
    found = job()
    found.crew(3, Weather(worker_spread=0.2), {0: (3, 1)})
    before = found.paces(0.0).tolist()
    found.slow[1], found.slow_until[1] = 0.3, 60.0
    assert found.paces(30.0)[1] == pytest.approx(0.3 * before[1])
    assert found.paces(61.0).tolist() == before


def test_what_a_worker_can_read_limits_the_job_and_is_seen_as_waiting() -> None:
    case = job().case
    at = np.array([[4.0, 2.0, 4.0, 4.0]])
    free = replace(case, input_per_s=math.inf)
    bound = replace(case, input_per_s=float(free.throughput(at)[0]) / 4 * 0.5)
    assert bound.throughput(at)[0] == pytest.approx(0.5 * free.throughput(at)[0])
    assert bound.input_wait(at)[0] == pytest.approx(0.5)
    assert bound.busy_cores(at)[0][0] == pytest.approx(0.5 * free.busy_cores(at)[0][0])
    assert free.input_wait(at)[0] == 0.0


def test_every_tenth_family_or_more_is_limited_by_its_input_and_w1_has_both_modes() -> None:
    cases = [c for seed in range(8) for c in generate(worlds.W1(), seed, jobs=30).cases]
    families = {c.family + str(c.seed): c for c in cases}.values()
    assert 0.1 < np.mean([c.input_per_s < math.inf for c in families]) < 0.35
    assert 0.1 < np.mean([c.mode == "sync" for c in families]) < 0.45


def test_a_limit_of_cores_above_the_mean_use_already_costs_a_measured_job_something() -> None:
    surface = worlds._Measured(np.array([[2.0, 2.0, 1.0, 1.0, 1.0]] * 3), 32.0, 1.0, (0.5, 0.25), 1.0)
    at = np.array([[2.0, 2.0, cores, 16.0] for cores in (4.0, 2.0, 1.0, 0.5)])
    speed = surface.throughput(at) / 32.0
    np.testing.assert_allclose(
        speed, [1.0, 1.0, 1 / 1.5, 1 / 2.5], err_msg="half of a step is bursts of 2 cores"
    )
    used = surface.busy_cores(at)[0] / at[:, 0]
    assert np.all(used <= at[:, 2] + 1e-12)


def test_a_synchronous_job_splits_its_batch_and_pays_for_each_worker_at_the_barrier() -> None:
    truth = worlds._Barrier(5)
    counts = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 10_000.0])
    speed = truth.throughput(np.stack([counts, 0 * counts + 4, 0 * counts + 4, 0 * counts + 4], axis=1))
    assert np.all(speed[1:3] > speed[:2]), "two and four are faster than one"
    assert np.all(speed / counts <= speed[0] + 1e-9), "but never more than in proportion"
    assert speed[-1] < speed.max(), "and too many meet at the servers"


def test_a_worker_leaves_the_host_that_it_is_on() -> None:
    machines = Machines(Hosts(np.full(2, 8.0), np.full(2, 64.0)))
    assert machines.start("a", Size(4, 2, 2.0, 1.0, 1.0, 1.0))
    node, held = next((n, h) for n, h in machines.where["a"].items() if h[0])
    free = machines.cores[node]
    machines.leave("a", node)
    assert machines.sizes["a"].workers == 3
    assert machines.where["a"].get(node, (0, 0))[0] == held[0] - 1
    assert machines.cores[node] == free + 2.0


def running(nodes: int) -> tuple[Runtime, Job]:
    """A job of two workers and a server that trains with our mechanisms, on nodes of 8 cores and 64 GiB."""
    hosts = Hosts(np.full(nodes, 8.0), np.full(nodes, 64.0))
    machines, found = Machines(hosts), job(hosts=hosts)
    runtime = Runtime(Mechanisms(elastic=True), machines, Weather())
    runtime.apply(found, Wanted(found.case.name, Size(2, 1, 2.0, 2.0, 4.0, 8.0)))
    found.state, found.until, found.joins = "running", math.inf, []
    runtime.go_live(found, machines.sizes[found.case.name])
    return runtime, found


def test_workers_that_may_stay_train_on_as_they_are_until_newcomers_are_faster() -> None:
    runtime, found = running(nodes=3)
    machines, name = runtime.machines, found.case.name
    (node,) = machines.where[name]
    machines.cores[:] += 4.0
    held, paces = machines.sizes[name], found.own.copy()
    other, third = (each for each in range(3) if each != node)
    grown = held._replace(worker_cores=6.0)
    runtime.apply(found, Wanted(name, grown, (node, other), (node,), (node,)))
    assert (found.state, found.live) == ("running", held), "both train on with two cores each"
    assert found.own.tolist() == paces.tolist()
    assert found.on == [node, node]
    assert machines.hosts_of(name, found.on)[0] == (node, other), "what is decided is where they will be"
    assert machines.beside[name] == [(node, 2.0, 4.0)]
    (at, live) = found.joins.pop()
    assert live == grown
    found.joins, runtime.now = [], at
    runtime.go_live(found, live)
    assert (found.on, found.own[0], machines.beside) == ([node, other], paces[0], {})
    machines.cores[other] = 0.0
    runtime.apply(found, Wanted(name, held, (node, third), (node,)))
    assert found.live == held._replace(workers=1), "one that may not stay leaves at once"
    (_, live), found.joins = found.joins[-1], []
    runtime.go_live(found, live)
    assert found.on == [node, third]
    runtime.apply(found, Wanted(name, held._replace(workers=1, worker_cores=1.0), (node,), (node,), (third,)))
    assert (found.joins, machines.beside) == ([], {}), "one that none follows leaves too"


def test_workers_that_stay_are_charged_and_go_with_a_loss() -> None:
    runtime, found = running(nodes=3)
    machines, name, free = runtime.machines, found.case.name, runtime.machines.cores.sum()
    (node,) = machines.where[name]
    held = machines.sizes[name]
    others = tuple(each for each in range(3) if each != node)
    runtime.apply(found, Wanted(name, held._replace(worker_cores=3.0), others, (node,), (node, node)))
    assert machines.cores.sum() == free - 2 * 3.0
    runtime.now = 100.0
    runtime.touch(found)
    assert found.result.worker_core_s == pytest.approx(100.0 * 2 * (3.0 + 2.0))
    runtime.lose(found, 1, 0, None)
    assert machines.cores.sum() == free - 2 * 1.0


def test_memory_that_the_node_has_not_is_given_elsewhere_and_not_at_once() -> None:
    runtime, found = running(nodes=2)
    held = runtime.machines.sizes[found.case.name]
    (node,) = runtime.machines.where[found.case.name]
    runtime.apply(found, Wanted(found.case.name, held._replace(server_gib=20.0)))
    assert not found.joins, "its node has room: in place"
    runtime.machines.gib[node] = 0.0  # others have taken the rest of it
    held = runtime.machines.sizes[found.case.name]
    runtime.apply(found, Wanted(found.case.name, held._replace(server_gib=40.0)))
    assert runtime.machines.sizes[found.case.name].server_gib == 40.0
    assert node not in runtime.machines.where[found.case.name]
    assert found.joins, "it trains on where it was until its new members are there"


def test_a_worker_makes_way_for_the_server_that_grows_beside_it_and_the_other_trains_on() -> None:
    runtime, found = running(nodes=2)
    (node,) = runtime.machines.where[found.case.name]
    held, paces = runtime.machines.sizes[found.case.name], found.own.copy()
    grown = held._replace(server_cores=6.0)
    runtime.apply(found, Wanted(found.case.name, grown, (node, 1 - node), (node,)))
    assert runtime.machines.where[found.case.name] == {node: (1, 1), 1 - node: (1, 0)}
    assert found.live == grown._replace(workers=1), "the server has its cores, one worker trains on"
    assert found.state == "running"
    assert found.own[0] == paces[0], "the worker that stays keeps its pace"
    assert [live for _, live in found.joins] == [grown], "the other is on its way"
    assert found.result.refused == 0


def test_a_job_of_which_all_workers_move_stands_still_until_the_first_is_there() -> None:
    runtime, found = running(nodes=3)
    (node,) = runtime.machines.where[found.case.name]
    elsewhere = [other for other in range(3) if other != node]
    grown = runtime.machines.sizes[found.case.name]._replace(worker_cores=4.0, server_cores=8.0)
    runtime.apply(found, Wanted(found.case.name, grown, tuple(elsewhere), (node,)))
    assert found.state == "stopped"
    assert found.until > runtime.now
    assert found.live is not None
    assert found.live.workers >= 1
    assert all(live.workers > found.live.workers for _, live in found.joins)
    assert set(found.on) <= set(elsewhere)


def test_hosts_without_room_are_not_taken_though_a_policy_names_them() -> None:
    runtime, found = running(nodes=2)
    (node,) = runtime.machines.where[found.case.name]
    machines, grown = runtime.machines, runtime.machines.sizes[found.case.name]._replace(workers=3)
    machines.cores[1 - node] = 1.0
    free = machines.cores.copy()
    assert not machines.seat(Wanted(found.case.name, grown, (node, node, 1 - node), (node,)))
    assert machines.cores.tolist() == free.tolist(), "nothing changed"
    assert machines.sizes[found.case.name].workers == 2


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_lone_worker_is_replaced_too(nodes: int) -> None:
    runtime, found = running(nodes)
    runtime.apply(found, Wanted(found.case.name, runtime.machines.sizes[found.case.name]._replace(workers=1)))
    runtime.machines.cores[1:] = 0.0
    if nodes == 1:
        runtime.machines.cores[:] = 0.0
    pace = found.own[0]
    runtime.replace(found, {0: -1})
    assert (found.state == "stopped") == (nodes == 1), (
        "without room for both it stands still until the other is there"
    )
    assert found.leaving == ([0] if nodes == 2 else [])
    if nodes == 1:
        assert found.until > runtime.now
        assert found.own[0] != pace


def test_the_workers_of_one_plan_are_replaced_together_where_it_says() -> None:
    runtime, found = running(nodes=3)
    name, before = found.case.name, dict(runtime.machines.where[found.case.name])
    elsewhere = next(node for node in range(3) if node not in found.on)
    runtime.replace(found, {0: elsewhere, 1: elsewhere})
    assert runtime.machines.where[name].get(elsewhere, (0, 0))[0] == 2 + before.get(elsewhere, (0, 0))[0]
    assert runtime.machines.sizes[name].workers == 2
    assert [each[1:] for each in runtime.machines.beside[name]] == [(2.0, 4.0)] * 2, "they stay until then"
    assert len(found.joins) == 1
    (_, live) = found.joins.pop()
    runtime.replaced(found)
    runtime.go_live(found, live)
    assert found.on == [elsewhere, elsewhere]
    assert not runtime.machines.beside


def test_workers_without_room_beside_them_go_before_their_successors_come() -> None:
    runtime, found = running(nodes=3)
    runtime.machines.cores[:] = 0.0
    runtime.replace(found, {0: 2})
    assert (found.state, found.live.workers if found.live else 0, found.leaving) == ("running", 1, [])
    assert runtime.machines.sizes[found.case.name].workers == 2


def test_a_replacement_that_is_given_up_leaves_the_job_as_large_as_it_was() -> None:
    runtime, found = running(nodes=3)
    before = runtime.machines.sizes[found.case.name].workers
    free = runtime.machines.cores.sum()
    runtime.replace(found, {1: -1})
    assert runtime.machines.cores.sum() == free - 2.0
    runtime.lose(found, 1, 0, None)
    assert runtime.machines.cores.sum() == free
    assert runtime.machines.sizes[found.case.name].workers == before
    assert not found.leaving


def test_a_slow_worker_leaves_when_its_replacement_is_there_wherever_its_job_is_by_then() -> None:
    runtime, found = running(nodes=3)
    runtime.replace(found, {1: -1})
    found.on = [99, 99]  # its job was moved meanwhile
    runtime.replaced(found)
    assert runtime.machines.sizes[found.case.name].workers == 2
    assert sum(held[0] for held in runtime.machines.where[found.case.name].values()) == 2


@pytest.mark.parametrize("node", [(32.0, 256.0), (16.0, 128.0), (4.0, 64.0)])
def test_no_user_asks_for_a_member_that_no_node_could_hold(node: tuple[float, float]) -> None:
    world = worlds.W1()
    world.node = node
    for case in generate(world, 2, jobs=20).cases:
        assert max(case.asked.worker_cores, case.asked.server_cores) <= node[0]
        assert max(case.asked.worker_gib, case.asked.server_gib) <= node[1]


@pytest.mark.parametrize(
    "world",
    [
        foreign_worlds.SlowHosts,
        foreign_worlds.Kills,
        foreign_worlds.Curves,
        foreign_worlds.CurvesOnSlowHosts,
    ],
)
def test_a_foreign_world_has_jobs_whose_members_use_no_more_than_they_hold(world: type[World]) -> None:
    found = generate(world(), 3000, jobs=8)
    assert len(found.cases) == 8
    for case in found.cases:
        at = np.array([[1, 1, 1, 1], [4, 2, 2, 4], [16, 4, 8, 2]], dtype=float)
        workers, servers = case.busy_cores(at)
        assert np.all(case.throughput(at) > 0)
        assert np.all(workers <= at[:, 0] * at[:, 2] + 1e-9)
        assert np.all(servers <= at[:, 1] * at[:, 3] + 1e-9)


class Heavy(worlds.W1):
    """A world whose workers need thrice the memory."""

    def memory(self, rng: np.random.Generator, usual: Needs) -> Needs:
        return usual._replace(worker_gib=3 * usual.worker_gib)


def test_a_world_says_what_memory_its_members_need() -> None:
    usual, heavy = (generate(world, 3, jobs=8).cases for world in (worlds.W1(), Heavy()))
    assert [case.worker_gib for case in heavy] == [3 * case.worker_gib for case in usual]
    assert [case.tables_gib for case in heavy] == [case.tables_gib for case in usual]


def test_measured_speeds_of_test_seeds_are_of_other_models_and_other_bursts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (
        "model,workers,ps,steps_per_second_total,worker_cpu_cores_mean,ps_cpu_cores_mean,total_batch_size"
    )
    rows = [f"{model},{w},1,{speed * w},2,1,64" for speed, model in enumerate("abcd", 1) for w in (1, 2, 4)]
    (tmp_path / "ps_worker_speeds.csv").write_text("\n".join([columns, *rows]) + "\n")
    monkeypatch.setenv(worlds.DATA_VARIABLE, str(tmp_path))
    seen = [
        {(tuple(truth.points[:, 2]), truth.bend == 1.0) for truth in map(worlds.W2().truth, seeds)}
        for seeds in (range(40), range(2_019_000, 2_019_040), range(3_000_000, 3_000_040))
    ]
    develop, frame, test = ({points for points, _ in each} for each in seen)
    assert develop == frame
    assert (len(develop), len(test), develop & test) == (2, 2, set())
    assert [{bends for _, bends in each} for each in seen] == [{True}, {True}, {False}]


def test_an_oracle_is_told_how_often_members_fail_and_ours_is_not() -> None:
    world = worlds.W1()
    told, ours = Knowing(world.setting(3), free=False), LiveBrain(world.setting(3))
    assert told.losses.hazard.failures_per_member_s == pytest.approx(2.2e-6)
    known = [policy.brain._decider.state.losses for policy in (told, ours)]
    assert known == [told.losses, LossCount()]
