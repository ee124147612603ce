"""A click log by batch number: nothing lost, bad rows named, two files told apart (issue "Bad rows", S6, S7)."""

from pathlib import Path

import numpy as np
import pytest

from rover_bus.client.data import ClickLog, Order, Schema
from rover_bus.events.errors import InputError

SCHEMA = Schema(dense=("d",), categorical=("c",))
CRITEO_NAMES = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
SHARED = Path(__file__).parents[4] / "shared" / "data" / "clicks"
shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared click logs are not here")


def write(path, rows, newline="\n"):
    path.write_bytes(newline.join(["label,d,c", *rows]).encode())
    return path


def batches(log, dataset, epoch=0):
    return [log.batch(epoch, number, dataset) for number in range(dataset.batches)]


@pytest.mark.parametrize(
    ("records", "size"), [(1050, 100), (100, 128), (8192, 100), (9000, 1000), (20_000, 9000)]
)
def test_s7_the_last_batch_is_short_and_lengths_sum_to_the_total(tmp_path, records, size):
    log = ClickLog(write(tmp_path / "log.csv", [f"1,{n},v{n}" for n in range(records)]), SCHEMA)
    dataset = log.dataset(size)
    found = batches(log, dataset)
    assert len(found) == -(-records // size)
    assert [len(batch) for batch in found[:-1]] == [size] * (len(found) - 1)
    assert sum(len(batch) for batch in found) == records
    assert np.array_equal(np.concatenate([batch.positions for batch in found]), np.arange(records))
    assert np.array_equal(
        np.concatenate([batch.rows for batch in found]), Order(records, 0, 0).locate(0, records)
    )


def test_the_rows_of_a_batch_are_those_of_the_file(tmp_path):
    log = ClickLog(write(tmp_path / "log.csv", [f"{n % 2},{n},v{n}" for n in range(3000)]), SCHEMA)
    whole, _, _ = log.read(np.arange(3000))
    batch = log.batch(3, 7, log.dataset(100, epochs=5, seed=9))
    assert (batch.epoch, batch.number) == (3, 7)
    assert batch.labels.tolist() == (batch.rows % 2).tolist()
    assert np.array_equal(batch.dense, whole.dense[batch.rows])
    assert np.array_equal(batch.categorical, whole.categorical[batch.rows])


def test_batches_are_the_same_in_any_order_and_with_any_cache(tmp_path):
    path = write(tmp_path / "log.csv", [f"1,{n},v{n}" for n in range(20_000)])
    dataset = ClickLog(path, SCHEMA).dataset(700)
    forward = batches(ClickLog(path, SCHEMA), dataset)
    uncached = ClickLog(path, SCHEMA, windows_cached=0)
    for number in (28, 0, 11, 12, 11):
        batch = uncached.batch(0, number, dataset)
        assert np.array_equal(batch.rows, forward[number].rows)
        assert np.array_equal(batch.dense, forward[number].dense)


def test_bad_rows_are_skipped_and_named_by_position_row_and_line(tmp_path):
    rows = [f"1,{n},v" for n in range(2000)]
    rows[5], rows[600], rows[601] = "1,5", "2,7,v", "x,8,v"
    rows[1200], rows[1300], rows[1999] = ",9,v", "", '1,"3,4",v,extra'
    log = ClickLog(write(tmp_path / "log.csv", rows), SCHEMA)
    found = batches(log, log.dataset(256, seed=4))
    skipped = [row for batch in found for row in batch.skipped]
    assert sorted((row.row, row.line, row.reason) for row in skipped) == [
        (5, 7, "2 fields instead of 3"),
        (600, 602, "label '2' is neither 0 nor 1"),
        (601, 603, "label 'x' is neither 0 nor 1"),
        (1200, 1202, "label '' is neither 0 nor 1"),
        (1300, 1302, "1 fields instead of 3"),
        (1999, 2001, "4 fields instead of 3"),
    ]
    order = Order(2000, 4, 0).locate(0, 2000)
    assert [order[row.position] for row in skipped] == [row.row for row in skipped]
    positions = np.concatenate([batch.positions for batch in found])
    assert len(positions) + len(skipped) == 2000
    assert not {row.position for row in skipped} & set(positions.tolist())
    for batch in found:
        assert all(row.position // 256 == batch.number for row in batch.skipped)


def test_missing_dense_values_are_imputed_by_the_mean_and_counted(tmp_path):
    log = ClickLog(write(tmp_path / "log.csv", ["1,1,a", "0,,b", "1,V,", "0,3,c"]), SCHEMA)
    columns, _, _ = log.read(np.arange(4))
    assert columns.values_missing == 2  # the empty category is a value, not a missing one
    assert columns.dense_missing.tolist() == [0, 1, 1, 0]
    assert columns.dense[1:3].tolist() == [[0.0], [0.0]]
    assert columns.dense[[0, 3]].mean() == pytest.approx(0.0, abs=1e-6)
    assert len(set(columns.categorical[:, 0].tolist())) == 4


def test_crlf_and_lf_read_the_same(tmp_path):
    rows = [f"{n % 2},{n}.5,v{n}" for n in range(700)]
    unix = ClickLog(write(tmp_path / "unix.csv", rows), SCHEMA)
    dos = ClickLog(write(tmp_path / "dos.csv", rows, "\r\n"), SCHEMA)
    for ours, theirs in zip(batches(unix, unix.dataset(64)), batches(dos, dos.dataset(64)), strict=True):
        assert np.array_equal(ours.rows, theirs.rows)
        assert np.array_equal(ours.dense, theirs.dense)
        assert np.array_equal(ours.categorical, theirs.categorical)


def test_a_threshold_turns_any_number_into_a_label(tmp_path):
    schema = Schema(dense=("d",), categorical=("c",), label_threshold=4)
    log = ClickLog(write(tmp_path / "log.csv", ["3.5,1,a", "4,1,a", "5,1,a", "-1,1,a", "good,1,a"]), schema)
    columns, places, skipped = log.read(np.arange(5))
    assert columns.labels.tolist() == [0, 1, 1, 0]
    assert places.tolist() == [0, 1, 2, 3]
    assert [row.reason for row in skipped] == ["label 'good' is not a number"]


def test_s6_a_digest_tells_other_data_and_another_schema_apart(tmp_path):
    rows = [f"1,{n},v" for n in range(5000)]
    base = ClickLog(write(tmp_path / "a.csv", rows), SCHEMA).digest
    assert ClickLog(write(tmp_path / "copy.csv", rows), SCHEMA).digest == base
    assert ClickLog(tmp_path / "a.csv", Schema(dense=("d",), multi={"c": "|"})).digest != base
    assert ClickLog(write(tmp_path / "longer.csv", [*rows, "1,1,v"]), SCHEMA).digest != base
    assert ClickLog(write(tmp_path / "other.csv", ["0,0,v", *rows[1:]]), SCHEMA).digest != base


def test_an_evaluation_file_is_read_with_the_scaling_of_the_training_file(tmp_path):
    train = ClickLog(write(tmp_path / "train.csv", [f"1,{n},v" for n in range(100)]), SCHEMA)
    other = ClickLog(write(tmp_path / "eval.csv", ["1,7,v", "0,9,v"]), SCHEMA, scaling=train.scaling)
    ours, _, _ = train.read(np.array([7, 9]))
    theirs, _, _ = other.read(np.array([0, 1]))
    assert np.array_equal(ours.dense, theirs.dense)


def test_batches_and_rows_outside_are_refused(tmp_path):
    log = ClickLog(write(tmp_path / "log.csv", ["1,1,v"] * 10), SCHEMA)
    with pytest.raises(IndexError, match="batch 2 is outside this grid of 2 batches"):
        log.batch(0, 2, log.dataset(5))
    with pytest.raises(IndexError, match=r"rows outside \[0, 10\)"):
        log.read(np.array([10]))
    with pytest.raises(InputError, match="has 10 rows, but 9 are registered"):
        log.batch(0, 0, ClickLog(write(tmp_path / "nine.csv", ["1,1,v"] * 9), SCHEMA).dataset(5))


def test_a_file_where_no_row_can_be_used_still_reads(tmp_path):
    log = ClickLog(write(tmp_path / "log.csv", ["1,2", "7,1,v"]), SCHEMA)
    batch = log.batch(0, 0, log.dataset(5))
    assert (len(batch), batch.dense.shape, batch.categorical.shape) == (0, (0, 1), (0, 1))
    assert len(batch.skipped) == 2


def test_raw_criteo_and_the_same_rows_with_a_header_read_alike(tmp_path):
    raw = ["\t".join([str(n % 2), *[str(n)] * 13, *[f"{n:08x}"] * 26]) for n in range(30)]
    (tmp_path / "raw.tsv").write_text("\n".join(raw) + "\n")
    (tmp_path / "headed.csv").write_text(
        "\n".join([",".join(CRITEO_NAMES), *(row.replace("\t", ",") for row in raw)])
    )
    ours = ClickLog(tmp_path / "raw.tsv", Schema(format="criteo")).read(np.arange(30))[0]
    named = Schema(dense=tuple(CRITEO_NAMES[1:14]), categorical=tuple(CRITEO_NAMES[14:]))
    theirs = ClickLog(tmp_path / "headed.csv", named).read(np.arange(30))[0]
    assert np.array_equal(ours.dense, theirs.dense)
    assert np.array_equal(ours.categorical, theirs.categorical)


@shared_data
def test_the_criteo_sample_reads_without_a_skipped_row():
    schema = Schema(format="criteo", header=True, delimiter=",")
    log = ClickLog(SHARED / "criteo_sample.csv", schema)
    columns, _, skipped = log.read(np.arange(log.records))
    assert (len(columns), skipped) == (200, ())
    assert columns.dense.shape == (200, 13)
    assert columns.values_missing > 100


@shared_data
def test_movielens_reads_whole_with_its_twelve_unparsable_years():
    categorical = ("user_id", "item_id", "gender", "occupation", "zip2", "genre1", "hour")
    schema = Schema(dense=("age", "release_year"), categorical=categorical, multi={"genres": "|"})
    log = ClickLog(SHARED / "movielens100k_train.csv", schema)
    found = batches(log, log.dataset(4096))
    assert sum(len(batch) for batch in found) == 80_000
    assert sum(batch.values_missing for batch in found) == 12
    assert len(np.unique(np.concatenate([batch.categorical[:, 0] for batch in found]))) == 943
