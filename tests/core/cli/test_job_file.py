"""JOB.toml: what it may say, and that every mistake comes back as one line naming the place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rover_bus.cli.home import Home
from rover_bus.client.job_file import check_data, program_here, read_job
from rover_bus.events.checkpoints import part_index
from rover_bus.events.errors import InputError, NameRefused
from rover_bus.events.units import number_in, parse_bytes, parse_seconds

JOB = """
name = "clicks"
program = ["{python}", "train.py"]
{top}
[data]
train = "train.csv"
evaluate = "eval.csv"
batch_size = 64
{data}
[data.schema]
dense = ["age"]
categorical = ["user"]
{rest}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = "label,age,user\n1,20,a\n0,31,b\n1,22,c\n"
    (tmp_path / "train.csv").write_text(rows)
    (tmp_path / "eval.csv").write_text(rows)
    return tmp_path


def write(folder: Path, *, top: str = "", data: str = "", rest: str = "", text: str = JOB) -> Path:
    path = folder / "job.toml"
    path.write_text(text.format(python=sys.executable, top=top, data=data, rest=rest))
    return path


def test_a_job_file_says_sizes_and_durations_with_units(folder: Path) -> None:
    path = write(
        folder,
        data='read_latency = "30ms"\nepochs = 3',
        rest='[workers]\ncount = 2\nmemory = "2GiB"\ncores = 0.5\n[leases]\ntarget = "2s"\nheartbeat = 0.5',
    )
    spec = read_job(path)
    assert spec.data.read_latency_s == 0.03
    assert (spec.workers.count, spec.workers.memory_bytes, spec.workers.cores) == (2, 2 << 30, 0.5)
    assert (spec.leases.target_s, spec.leases.heartbeat_s) == (2.0, 0.5)
    assert spec.data.epochs == 3


def test_paths_are_relative_to_the_job_file_and_not_to_where_one_stands(folder: Path) -> None:
    spec = read_job(write(folder, top='predictions = "p.csv"'))
    assert spec.data.train == str(folder / "train.csv")
    assert spec.directory == str(folder)
    assert spec.predictions == str(folder / "p.csv")


def test_options_replace_what_the_file_says(folder: Path) -> None:
    spec = read_job(write(folder), name="other", seed=7)
    assert (spec.name, spec.data.seed) == ("other", 7)


def test_a_file_without_a_name_gives_the_job_its_own(folder: Path) -> None:
    path = folder / "my-job.toml"
    path.write_text('[data]\ntrain = "train.csv"\n')
    spec = read_job(path) if (Path(__file__).parents[3] / "examples/dlrm/train.py").exists() else None
    if spec is None:
        pytest.skip("the built-in program is not in this checkout")
    assert spec.name == "my-job"
    assert spec.program[0] == sys.executable


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rest": "[workers]\ncuont = 2"}, "no key 'workers.cuont'; did you mean 'count'?"),
        ({"rest": "[wrokers]\ncount = 2"}, "no key 'wrokers'; did you mean 'workers'?"),
        ({"rest": "[workers]\nbatch_size = 2"}, "no key 'workers.batch_size'; it belongs under [data]"),
        ({"data": "memory_bytes = 2"}, "no key 'data.memory_bytes'"),
        ({"data": "depth = 2"}, "it belongs above the first [table]"),
        ({"rest": '[workers]\ncount = "2"'}, "workers.count: expected `int`, got `str`"),
        ({"rest": "[workers]\ncount = -1"}, "workers.count: expected `int` >= 0"),
        ({"rest": "[servers]\nmin_count = 3\nmax_count = 2"}, "servers: min_count is larger than max_count"),
        ({"rest": "[workers]\nmin_count = 2\ncount = 3"}, "workers: count is the least already"),
        ({"data": "epochs = 0"}, "data.epochs"),
        ({"rest": '[leases]\nheartbeat = "0s"'}, "leases.heartbeat"),
        ({"rest": '[workers]\nmemory = "2 parsecs"'}, "workers.memory must be a size like '2GiB'"),
        ({"top": "workers = 3"}, "workers must be a table"),
        ({"top": 'predictions = ["p.csv"]'}, "predictions must be the path of a file"),
        ({"data": f"epochs = {2**63}"}, f"data.epochs: {2**63} does not fit into 64 bits"),
        (
            {"rest": '[workers]\nmemory = "9999999999TiB"'},
            "workers.memory: '9999999999TiB' does not fit into 64 bits",
        ),
        ({"rest": f'[leases]\ntarget = "{"9" * 400}s"'}, "does not fit into 64 bits"),
        ({"rest": f"[model]\ntop = [8, {10**20}]"}, f"model.top: {10**20} does not fit into 64 bits"),
        ({"top": 'on_server_lost = "panic"'}, "on_server_lost"),
        ({"top": 'name = "twice"'}, "job.toml"),
        ({"text": "name = "}, "job.toml"),
        ({"text": " \n"}, "is empty"),
        ({"text": 'name = "a"'}, "there is no [data]"),
        ({"text": 'program = "dlmr"\n[data]\ntrain = "train.csv"'}, "did you mean 'dlrm'?"),
        ({"text": 'program = []\n[data]\ntrain = "train.csv"'}, "program must be a name, or a list"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(folder: Path, wrong: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_job(write(folder, **wrong))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_no_subject_can_hold_is_refused_with_one_that_can(folder: Path) -> None:
    with pytest.raises(NameRefused, match="my-job-1"):
        read_job(write(folder), name="my job.1")


@pytest.mark.parametrize(("name", "why"), [("t" * 3000, "File name too long"), ("\\u0000", "null")])
def test_a_path_that_no_file_can_have_is_refused_like_a_missing_one(
    folder: Path, name: str, why: str
) -> None:
    text = write(folder).read_text()
    (folder / "job.toml").write_text(text.replace("train.csv", name))
    with pytest.raises(InputError, match=rf"cannot read .*{why}"):
        check_data(read_job(folder / "job.toml"))


def test_a_missing_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no job file .*absent\.toml"):
        read_job(tmp_path / "absent.toml")


def test_data_is_counted_before_anything_is_submitted(folder: Path) -> None:
    assert check_data(read_job(write(folder))) == {"train": 3, "evaluate": 3}


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("train.csv", None, "no file"),
        ("eval.csv", None, "no file"),
        ("train.csv", "", "is empty"),
        ("train.csv", "label,age,user\n", "no rows"),
        ("eval.csv", "label,age,usr\n1,2,a\n", "no column 'user'; did you mean 'usr'?"),
    ],
)
def test_data_that_cannot_be_used_is_refused_by_name(
    folder: Path, file: str, content: str | None, says: str
) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(InputError) as caught:
        check_data(read_job(write(folder)))
    assert says in str(caught.value)


def test_predictions_without_an_evaluation_file_are_refused(folder: Path) -> None:
    path = write(folder, text=JOB.replace('evaluate = "eval.csv"', ""))
    with pytest.raises(InputError, match=r"set data\.evaluate"):
        check_data(read_job(path, predictions=folder / "p.csv"))


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), ("7B", 7), (12, 12)]
)
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text, "x") == size


@pytest.mark.parametrize(("text", "seconds"), [("30ms", 0.03), ("2m", 120.0), ("1.5 h", 5400.0), (3, 3.0)])
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text, "x") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["2", "", "GiB", "-1s", True, -1, None, "1e3s"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="x must be a duration"):
        parse_seconds(text, "x")


def test_parity_is_for_one_or_two_lost_hosts_and_in_place_of_copies(folder: Path) -> None:
    spec = read_job(write(folder, rest="[checkpoint]\nparity = 2\n"))
    assert spec.checkpoint is not None
    assert (spec.checkpoint.parity, spec.on_server_lost) == (2, "restore")
    with pytest.raises(InputError, match="choose one of them"):
        read_job(write(folder, rest="[checkpoint]\nparity = 1\ncopies = 1\n"))
    with pytest.raises(InputError, match="parity"):
        read_job(write(folder, rest="[checkpoint]\nparity = 3\n"))
    spec = read_job(write(folder, rest='[checkpoint]\ncopies = 1\npath = "store"\n'))
    assert spec.checkpoint is not None
    assert (spec.checkpoint.copies, spec.checkpoint.path) == (1, str(folder / "store"))


def test_what_runs_here_is_found_here_and_python_is_the_interpreter_that_reads_this(folder: Path) -> None:
    data = '\n[data]\ntrain = "train.csv"'
    missing = read_job(write(folder, text=f'program = ["no-such-program-here"]{data}'))
    with pytest.raises(InputError, match="'no-such-program-here' is not there, or cannot be executed"):
        program_here(missing)  # hosts may have it: only what runs here needs it here
    own = read_job(write(folder, text=f'program = ["python", "train.py"]{data}'))
    assert program_here(own) == [sys.executable, "train.py"]


def test_a_directory_whose_name_no_event_can_hold_is_refused_by_name(folder: Path) -> None:
    strange = Path(os.fsdecode(os.fsencode(folder) + b"/\xff"))
    strange.mkdir()
    with pytest.raises(InputError, match=r"job file .*\\xff/job.toml: the name is not UTF-8"):
        read_job(write(folder).rename(strange / "job.toml"))
    with pytest.raises(InputError, match=r"state directory .*\\xff: the name is not UTF-8"):
        Home.find(strange)


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("007", 7), ("", -1), ("²", -1), ("٣", -1), ("-1", -1), ("9" * 5000, -1)]
)
def test_a_number_in_a_name_is_ascii_digits(text: str, number: int) -> None:
    assert number_in(text) == number
    assert part_index(f"ps-{text}") == number
