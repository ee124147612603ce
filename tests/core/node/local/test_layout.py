"""The state directory: what survives a daemon."""

import os
from pathlib import Path

import pytest

from rover_bus.events.errors import NameRefused
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.node.local import layout, locks
from rover_bus.node.local.layout import ExitRecord, OrderRecord, StateDirectory, list_members, read_logs


def put(
    place: StateDirectory, member: Member, uid: str = "u1", job: str = "demo"
) -> layout.IncarnationDirectory:
    life = place.incarnation(job, uid, member)
    life.path.mkdir(parents=True)
    desired = DesiredMember(member=member, host="h", command=["true"])
    life.write("order", OrderRecord(job=job, uid=uid, desired=desired, cpus={1: 0.5}))
    return life


def test_an_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    place = StateDirectory(tmp_path)
    put(place, Member("worker", 0, 2))
    ((_, order),) = place.incarnations()
    assert (order.desired.member, order.cpus) == (Member("worker", 0, 2), {1: 0.5})


def test_records_that_are_none_are_passed_over(tmp_path: Path) -> None:
    life = put(StateDirectory(tmp_path), Member("worker", 0, 1))
    for bytes_ in (b"", b"{", b"\x00" * 50, b'{"reason": 7}'):
        (life.path / "exit").write_bytes(bytes_)
        assert life.ended() is None


def test_a_lock_is_held_until_its_last_descriptor_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "alive")
    assert not locks.is_held_at(path)
    first = locks.hold(path)
    assert first is not None
    second = os.dup(first)
    os.close(first)
    assert locks.is_held_at(path)
    assert locks.hold(path) is None
    os.close(second)
    assert not locks.is_held_at(path)


def test_asking_for_a_lock_never_takes_it(tmp_path: Path) -> None:
    path = str(tmp_path / "alive")
    Path(path).touch()
    probe = os.open(path, os.O_RDONLY)
    assert not locks.is_held(probe)
    held = locks.hold(path)
    assert held is not None
    assert locks.is_held(probe)
    os.close(held)
    os.close(probe)


def test_a_reported_end_outlives_the_next_one_of_its_place_only_until_that_is_reported(
    tmp_path: Path,
) -> None:
    place = StateDirectory(tmp_path)
    for incarnation in (1, 2):
        put(place, Member("master", 0, incarnation)).write("exit", ExitRecord(reason="killed"))
    put(place, Member("master", 1, 1))
    place.mark_reported("demo", "u1", Member("master", 0, 1))
    assert len(list(place.incarnations())) == 3
    place.mark_reported("demo", "u1", Member("master", 0, 2))
    assert [order.desired.member for _, order in place.incarnations()] == [
        Member("master", 0, 2),
        Member("master", 1, 1),
    ]


def test_a_job_is_forgotten_with_all_its_runs_and_nobody_elses(tmp_path: Path) -> None:
    place = StateDirectory(tmp_path)
    put(place, Member("worker", 0, 1), uid="u1")
    put(place, Member("worker", 0, 1), uid="u2")
    put(place, Member("worker", 0, 1), job="demo-2")
    place.forget("demo")
    assert [order.job for _, order in place.incarnations()] == ["demo-2"]


def test_logs_are_those_of_the_newest_run_in_order_of_incarnation(tmp_path: Path) -> None:
    place = StateDirectory(tmp_path)
    for uid, age_ns in (("u1", 1), ("u2", 2)):
        for incarnation in (1, 2, 10):
            log = place.log("demo", uid, Member("worker", 0, incarnation))
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
        os.utime(log.parent, ns=(age_ns, age_ns))
    found = read_logs(tmp_path, "demo", "worker-0")
    assert [str(log.relative_to(tmp_path)) for log in found] == [
        f"logs/demo.u2/worker-0.{incarnation}.log" for incarnation in (1, 2, 10)
    ]
    assert read_logs(tmp_path, "demo", "worker-1") == read_logs(tmp_path, "other") == []


def test_no_name_leads_out_of_the_directory(tmp_path: Path) -> None:
    for job, uid in (("../x", ""), ("demo", "../../x")):
        with pytest.raises(NameRefused):
            StateDirectory(tmp_path).incarnation(job, uid, Member("worker", 0, 1))
    with pytest.raises(NameRefused):
        read_logs(tmp_path, "../../etc")


def test_members_are_listed_without_a_daemon(tmp_path: Path) -> None:
    life = put(StateDirectory(tmp_path), Member("worker", 0, 1))
    life.write("exit", ExitRecord(reason="failed", status=3))
    (member,) = list_members(tmp_path, "demo")
    assert member.exit is not None
    assert (member.state, member.pid, member.exit.reason, member.exit.status) == ("ended", 0, "failed", 3)
    assert list_members(tmp_path, "other") == []
