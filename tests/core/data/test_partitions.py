"""Partitions that grow: what is readable, what is sealed, and the same rows at the same offsets whenever they are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.client.data import ClickLog, PartitionLog, Scaling, Schema, open_log
from rover_bus.client.data.growing import GrowingFile
from rover_bus.client.data.order import BLOCK_ROWS
from rover_bus.client.data.partitions import NotYetReadable
from rover_bus.client.spans import HighWater, Records
from rover_bus.events.errors import InputError

SCHEMA = Schema(dense=("d",), categorical=("c",))
HEADER = "label,d,c\n"


def line(n: int) -> str:
    return f"{n % 2},{n},v{n}\n"


def append(path: Path, text: str) -> None:
    with path.open("ab") as file:
        file.write(text.encode())


def seal(path: Path) -> None:
    path.with_name(path.name + ".sealed").touch()


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    directory = tmp_path / "stream"
    directory.mkdir()
    (directory / "a.csv").write_text(HEADER + "".join(line(n) for n in range(25)))
    (directory / "b.csv").write_text("")
    return directory


def test_high_water_counts_complete_rows_and_follows_the_growth(stream: Path) -> None:
    log = PartitionLog(stream, SCHEMA)
    assert log.high_water() == HighWater({"a.csv": 25, "b.csv": 0}, [])
    append(stream / "a.csv", "1,25")
    append(stream / "b.csv", "label,")
    assert log.high_water().rows == {"a.csv": 25, "b.csv": 0}, "half a line was taken for a row"
    append(stream / "a.csv", ",v25\n0,26,v26\n")
    append(stream / "b.csv", "d,c\r\n1,0,x\r\n")
    assert log.high_water().rows == {"a.csv": 27, "b.csv": 1}
    assert log.records == 28


def test_a_seal_ends_a_partition_and_its_last_line_needs_no_newline(stream: Path) -> None:
    log = PartitionLog(stream, SCHEMA)
    append(stream / "a.csv", "1,25,v25")
    seal(stream / "a.csv")
    assert log.high_water() == HighWater({"a.csv": 26, "b.csv": 0}, ["a.csv"])
    assert not log.high_water().final
    seal(stream / "b.csv")
    assert log.high_water().final
    assert log.read("a.csv", 25, 26).categorical.shape == (1, 1)


def test_a_partition_that_never_held_a_row_can_be_sealed(stream: Path) -> None:
    (stream / "b.csv").write_text("label,d,c")
    seal(stream / "b.csv")
    assert PartitionLog(stream, SCHEMA).high_water() == HighWater({"a.csv": 25, "b.csv": 0}, ["b.csv"])


def test_a_read_has_offsets_as_positions_and_the_values_of_the_file(stream: Path) -> None:
    batch = PartitionLog(stream, SCHEMA).read("a.csv", 7, 19)
    assert batch.positions.tolist() == batch.rows.tolist() == list(range(7, 19))
    assert batch.labels.tolist() == [n % 2 for n in range(7, 19)]
    assert batch.file == str(stream / "a.csv")


def test_bad_rows_are_named_by_file_and_line_and_stand_on_the_grid_of_their_batch(stream: Path) -> None:
    append(stream / "a.csv", "?,1,x\n1,2\n\n1,,x\n")
    log = PartitionLog(stream, SCHEMA)
    batch = log.read("a.csv", 20, 29)
    assert batch.positions.tolist() == [20, 21, 22, 23, 24, 28]
    assert [(row.position, row.row, row.line) for row in batch.skipped] == [
        (25, 25, 27),
        (26, 26, 28),
        (27, 27, 29),
    ]
    assert batch.values_missing == 1
    placed = log.batch_of(0, 4, log.dataset(10), Records("a.csv", 20, 29))
    assert (placed.epoch, placed.number) == (0, 4)
    assert [(row.position, row.row) for row in placed.skipped] == [(45, 25), (46, 26), (47, 27)]
    assert placed.positions.tolist() == batch.positions.tolist()


def test_blank_lines_at_the_present_end_are_rows_only_once_others_follow(stream: Path) -> None:
    append(stream / "a.csv", "\n\n")
    log = PartitionLog(stream, SCHEMA)
    assert log.high_water().rows["a.csv"] == 25
    append(stream / "a.csv", line(25))
    assert log.high_water().rows["a.csv"] == 28
    assert [row.row for row in log.read("a.csv", 20, 28).skipped] == [25, 26]


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.integers(1, 900), min_size=1, max_size=12),
    rows=st.integers(1, 3 * BLOCK_ROWS),
    cut=st.integers(1, 700),
)
def test_however_a_file_grew_its_rows_are_those_of_the_finished_file(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], rows: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("grown") / "a.csv"
    body = (HEADER + "".join(line(n) for n in range(rows))).encode()
    path.write_bytes(b"")
    log = PartitionLog(path.parent, SCHEMA, scaling=Scaling(np.zeros(1), np.ones(1)))
    at = read = 0
    labels, ids = [], []
    while at < len(body):
        for size in pieces:
            with path.open("ab") as file:
                file.write(body[at : at + 7 * size])
            at += 7 * size
            readable = log.high_water().rows["a.csv"]
            assert readable == max(body[:at].count(b"\n") - 1, 0)
            while read < readable:
                end = min(readable, read + cut)
                batch = log.read("a.csv", read, end)
                labels.append(batch.labels)
                ids.append(batch.categorical)
                read = end
    whole, _, _ = ClickLog(path, SCHEMA).read(np.arange(rows))
    assert np.array_equal(np.concatenate(labels), whole.labels)
    assert np.array_equal(np.concatenate(ids), whole.categorical)


def test_a_look_reads_only_what_was_added_and_keeps_eight_bytes_a_block(stream: Path) -> None:
    path = stream / "a.csv"
    file = GrowingFile(path, SCHEMA)
    for _ in range(40):
        append(path, "".join(line(n) for n in range(1000)))
        file.look()
    assert file.rows == 40_025
    assert file._scan is not None
    assert len(file._scan.starts) == -(-40_025 // BLOCK_ROWS)
    before = file._scan.offset
    file.look()
    assert file._scan.offset == before == path.stat().st_size


def test_rows_that_another_worker_saw_first_are_looked_for_and_else_not_yet_readable(stream: Path) -> None:
    log = PartitionLog(stream, SCHEMA)
    append(stream / "a.csv", line(25))
    assert log.read("a.csv", 20, 26).positions.tolist() == list(range(20, 26))
    with pytest.raises(NotYetReadable, match="26 rows, but 30"):
        log.read("a.csv", 20, 30)
    seal(stream / "a.csv")
    with pytest.raises(InputError, match="sealed"):
        log.read("a.csv", 20, 30)


def test_old_offsets_can_be_read_again_after_much_has_been_added(stream: Path) -> None:
    log = PartitionLog(stream, SCHEMA, windows_cached=1)
    first = log.read("a.csv", 3, 9)
    append(stream / "a.csv", "".join(line(n) for n in range(25, 30_000)))
    log.high_water()
    late = log.read("a.csv", 29_000, 29_990)
    again = log.read("a.csv", 3, 9)
    assert late.rows[-1] == 29_989
    assert np.array_equal(first.dense, again.dense)
    assert np.array_equal(first.categorical, again.categorical)


def test_scaling_is_taken_from_the_first_rows_so_that_later_workers_scale_alike(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(HEADER + "".join(line(n) for n in range(16 * BLOCK_ROWS)))
    early = PartitionLog(tmp_path, SCHEMA).scaling
    append(tmp_path / "a", "".join(f"1,{10**9},x\n" for _ in range(5000)))
    late = PartitionLog(tmp_path, SCHEMA).scaling
    assert (early.mean, early.deviation) == (late.mean, late.deviation)
    logs = np.log1p(np.tile(np.arange(8 * BLOCK_ROWS), 2))
    assert early.mean[0] == pytest.approx(logs.mean())


def test_a_stream_without_a_row_at_the_start_scales_by_the_logarithm_alone(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    log = PartitionLog(tmp_path, SCHEMA)
    append(tmp_path / "a", HEADER + "1,1.718281828,x\n")
    log.high_water()
    assert log.read("a", 0, 1).dense[0, 0] == pytest.approx(1.0, abs=1e-6)


def test_a_stream_registers_its_partitions_and_no_total(stream: Path) -> None:
    seal(stream / "b.csv")
    (stream / ".part").touch()
    (stream / "_SUCCESS").touch()
    dataset = PartitionLog(stream, SCHEMA).dataset(32, seed=4)
    assert dataset.streaming
    assert (dataset.partitions, dataset.records, dataset.samples_total) == (["a.csv", "b.csv"], 0, 0)
    append(stream / "a.csv", line(25))
    grown = PartitionLog(stream, SCHEMA).dataset(32, seed=4)
    assert grown.replace(features=dataset.features) == dataset, "growth made it another data set"
    other = PartitionLog(stream, Schema(categorical=("c",))).dataset(32, seed=4)
    assert other.digest != dataset.digest


def test_a_file_that_appears_later_is_not_part_of_the_stream(stream: Path) -> None:
    before = PartitionLog(stream, SCHEMA).dataset(10)
    (stream / "new.csv").write_text(HEADER)
    log = PartitionLog(stream, SCHEMA)
    assert log.dataset(10) != before
    log.adopt(before)
    assert log.dataset(10) == before
    assert "new.csv" not in log.high_water().rows
    with pytest.raises(InputError, match=r"no partition 'gone\.csv'"):
        log.adopt(before.replace(partitions=["gone.csv"]))


def test_a_worker_that_joins_later_scales_as_the_first_one_did(tmp_path: Path) -> None:
    schema = Schema(dense=("x",))
    (tmp_path / "a.csv").write_text("label,x\n0,1\n1,3\n")
    first = PartitionLog(tmp_path, schema)
    registered = first.dataset(2)
    (tmp_path / "a.csv").write_text("label,x\n0,1\n1,3\n1,1000\n")
    late = PartitionLog(tmp_path, schema)
    assert late.scaling.mean != first.scaling.mean
    late.adopt(registered)
    first.high_water()
    late.high_water()
    ours, theirs = (log.batch_of(0, 0, registered, Records("a.csv", 0, 2)) for log in (late, first))
    assert ours.dense.tobytes() == theirs.dense.tobytes()


def cut_short(path: Path) -> None:
    path.write_text(HEADER)


def replaced(path: Path) -> None:
    other = path.with_name(".other")
    other.write_text(HEADER + "".join(line(n) for n in range(50)))
    other.replace(path)


def taken_away(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("harm", "said"), [(cut_short, "appended to"), (replaced, "appended to"), (taken_away, "no file")]
)
def test_a_partition_that_was_harmed_is_refused_by_name(stream: Path, harm: object, said: str) -> None:
    log = PartitionLog(stream, SCHEMA)
    assert callable(harm)
    harm(stream / "a.csv")
    with pytest.raises(InputError, match=rf"a\.csv.*{said}|{said}.*a\.csv"):
        log.high_water()


def test_a_quoted_newline_in_what_was_added_is_refused_by_line(stream: Path) -> None:
    log = PartitionLog(stream, SCHEMA)
    append(stream / "a.csv", '1,2,"half\n')
    append(stream / "a.csv", '1,2,way"\n')
    with pytest.raises(InputError, match=r"a\.csv, line 27"):
        log.high_water()


@pytest.mark.parametrize(
    ("names", "said"),
    [((), "no partition"), (("x.sealed", ".hidden"), "no partition"), (None, "no directory")],
)
def test_a_directory_that_is_no_stream_is_refused(
    tmp_path: Path, names: tuple[str, ...] | None, said: str
) -> None:
    directory = tmp_path / "d"
    if names is not None:
        directory.mkdir()
        for name in names:
            (directory / name).touch()
    with pytest.raises(InputError, match=said):
        PartitionLog(directory, SCHEMA)


def test_a_wrong_column_is_named_with_its_file(stream: Path) -> None:
    with pytest.raises(InputError, match=r"a\.csv: no column 'price'"):
        PartitionLog(stream, Schema(dense=("price",), categorical=("c",)))


def test_more_than_one_epoch_of_a_stream_is_refused(stream: Path) -> None:
    with pytest.raises(InputError, match="read once"):
        PartitionLog(stream, SCHEMA).dataset(10, epochs=2)


def test_a_path_opens_as_what_it_is(stream: Path) -> None:
    assert isinstance(open_log(stream, SCHEMA), PartitionLog)
    assert isinstance(open_log(stream / "a.csv", SCHEMA, cache=stream / ".index"), ClickLog)
    assert len(list((stream / ".index").iterdir())) == 1


def test_partitions_of_raw_criteo_and_with_columns_in_another_order_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(HEADER + "1,5,x\n")
    (tmp_path / "b").write_text("c,label,d\nx,1,5\n")
    log = PartitionLog(tmp_path, SCHEMA)
    one, other = log.read("a", 0, 1), log.read("b", 0, 1)
    assert np.array_equal(one.categorical, other.categorical)
    assert np.array_equal(one.dense, other.dense)
    raw = tmp_path / "raw"
    raw.mkdir()
    fields = ["1", *("3" for _ in range(13)), *(f"c{n}" for n in range(26))]
    (raw / "day0").write_text("\t".join(fields) + "\n")
    batch = PartitionLog(raw, Schema(format="criteo")).read("day0", 0, 1)
    assert batch.categorical.shape == (1, 26)


def test_a_partition_whose_name_no_event_can_hold_is_refused_by_name(stream: Path) -> None:
    Path(os.fsdecode(os.fsencode(stream) + b"/c\xff.csv")).write_text("")
    with pytest.raises(InputError, match=r"partition .*/c\\xff\.csv: the name is not UTF-8"):
        PartitionLog(stream, SCHEMA)
