"""Control groups: version 2 from a recorded hierarchy, and trees composed for the cases that the recording has not.

`recorded/cgroup2` was recorded under Linux 6.1 (`recorded/record.sh` is what ran), because machines that have version 1 only
cannot show version 2: a group limited to half a core and 64 MiB, below a group with 1.5 cores, in which one process burned its
core, one was killed by the kernel for its memory, and 16 MiB of shared memory stayed. The version 1 trees are composed from
version 1 file formats.
"""

from collections.abc import Mapping
from pathlib import Path

from rover_bus.events import cgroup
from rover_bus.node.local import sampling

RECORDED = Path(__file__).parent / "recorded" / "cgroup2"

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 {root} /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 {root} /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_PATHS = "4:memory:{path}\n2:cpuacct:{path}\n1:cpu:{path}\n0::/\n"
V2_CPU_STAT = """usage_usec 2465151914
user_usec 2413411548
system_usec 51740366
nr_periods 4000
nr_throttled 1000
throttled_usec 81234567
"""


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(root: Path) -> Path:
    own, pod = "sys/fs/cgroup/pod/box", "sys/fs/cgroup/pod"
    return write(
        root,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            f"{own}/cpu.max": "max 100000\n",
            f"{own}/cpu.stat": V2_CPU_STAT,
            f"{own}/memory.max": "8589934592\n",
            f"{own}/memory.current": "3221225472\n",
            f"{own}/memory.stat": "anon 2000000000\nfile 1200000000\ninactive_file 1073741824\n",
            f"{own}/memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
            f"{pod}/cpu.max": "150000 100000\n",
            f"{pod}/memory.max": "max\n",
        },
    )


def version_1(root: Path, mount_root: str = "/", path: str = "/box") -> Path:
    below = "" if mount_root != "/" else path
    return write(
        root,
        {
            "proc/self/cgroup": V1_PATHS.format(path=path),
            "proc/self/mountinfo": V1_MOUNTS.format(root=mount_root),
            f"sys/fs/cgroup/cpu{below}/cpu.cfs_quota_us": "250000\n",
            f"sys/fs/cgroup/cpu{below}/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/cpu{below}/cpu.stat": "nr_periods 200\nnr_throttled 50\nthrottled_time 81234\nnr_bursts 0\n",
            f"sys/fs/cgroup/cpuacct{below}/cpuacct.usage": "7500000000\n",
            f"sys/fs/cgroup/memory{below}/memory.limit_in_bytes": "2147483648\n",
            f"sys/fs/cgroup/memory{below}/memory.usage_in_bytes": "1500000000\n",
            f"sys/fs/cgroup/memory{below}/memory.stat": "cache 700000000\ntotal_inactive_file 500000000\n",
            f"sys/fs/cgroup/memory{below}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n" if below else "250000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"
            if below
            else "2147483648\n",
            "sys/fs/cgroup/unified/cpu.stat": "usage_usec 2465151914\n",
        },
    )


def test_a_recorded_hierarchy_shows_the_limits_that_were_set() -> None:
    found = cgroup.find(RECORDED)
    assert (found.version, len(found.cpu)) == (2, 3)
    assert cgroup.read_limits(found) == cgroup.CgroupLimits(cores=0.5, memory_bytes=64 << 20)


def test_a_recorded_hierarchy_shows_what_was_used_and_how_often_it_was_throttled() -> None:
    assert cgroup.read_usage(cgroup.find(RECORDED)) == cgroup.CgroupUsage(
        processor_s=5.591082, memory_bytes=16_998_400, periods=112, periods_throttled=107
    )


def test_a_recorded_kill_by_the_kernel_is_counted() -> None:
    counter = cgroup.out_of_memory_counter(cgroup.find(RECORDED))
    assert counter == RECORDED / "sys/fs/cgroup/pod/box/memory.events"
    assert cgroup.table(counter.read_text())["oom_kill"] == 1


def test_recorded_pressure_is_that_of_our_own_group_and_not_of_the_host() -> None:
    own = sampling.read_pressure(cgroup.find(RECORDED), "cpu", RECORDED)
    assert sampling.parse_stalled_s(own) == 9.152611


def test_version_2_takes_the_least_limit_along_the_path(tmp_path: Path) -> None:
    found = cgroup.find(version_2(tmp_path))
    assert found.version == 2
    assert cgroup.read_limits(found) == cgroup.CgroupLimits(cores=1.5, memory_bytes=8 << 30)


def test_version_2_usage_leaves_out_the_cache_that_the_kernel_gives_back(tmp_path: Path) -> None:
    used = cgroup.read_usage(cgroup.find(version_2(tmp_path)))
    assert used == cgroup.CgroupUsage(
        processor_s=2465.151914, memory_bytes=2 << 30, periods=4000, periods_throttled=1000
    )


def test_version_1_reads_the_same_figures(tmp_path: Path) -> None:
    found = cgroup.find(version_1(tmp_path))
    assert found.version == 1
    assert cgroup.read_limits(found) == cgroup.CgroupLimits(cores=2.5, memory_bytes=2 << 30)
    assert cgroup.read_usage(found) == cgroup.CgroupUsage(
        processor_s=7.5, memory_bytes=1_000_000_000, periods=200, periods_throttled=50
    )


def test_version_1_in_a_container_that_sees_its_own_group_as_the_top(tmp_path: Path) -> None:
    found = cgroup.find(version_1(tmp_path, mount_root="/docker/abc", path="/docker/abc"))
    assert cgroup.read_limits(found) == cgroup.CgroupLimits(cores=2.5, memory_bytes=2 << 30)


def test_a_hybrid_machine_whose_unified_tree_has_no_controllers_is_version_1(tmp_path: Path) -> None:
    assert cgroup.find(version_1(tmp_path)).version == 1


def test_a_root_group_of_version_2_limits_nothing(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.stat": V2_CPU_STAT,
        },
    )
    found = cgroup.find(root)
    assert found.version == 2
    assert cgroup.read_limits(found) == cgroup.CgroupLimits()
    assert cgroup.read_usage(found).memory_bytes is None


def test_a_machine_without_control_groups_limits_nothing_and_measures_nothing(tmp_path: Path) -> None:
    found = cgroup.find(write(tmp_path, {"proc/self/mountinfo": ""}))
    assert (found.version, cgroup.read_limits(found), cgroup.read_usage(found)) == (
        0,
        cgroup.CgroupLimits(),
        cgroup.CgroupUsage(),
    )


def test_the_counter_of_kernel_kills_is_found_in_both_versions(tmp_path: Path) -> None:
    for version, name in ((version_2, "memory.events"), (version_1, "memory.oom_control")):
        counter = cgroup.out_of_memory_counter(cgroup.find(version(tmp_path / name)))
        assert counter is not None
        assert counter.name == name


def test_this_machine_is_read_without_an_error() -> None:
    limits = cgroup.read_limits(cgroup.find())
    assert limits.cores is None or limits.cores > 0
    assert limits.memory_bytes is None or limits.memory_bytes > 0
