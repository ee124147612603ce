"""One scan of a file: where its blocks start, how many rows it has, and what it refuses."""

import csv
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.client.data import Schema, index
from rover_bus.client.data.index import build_index, ends_inside_quotes
from rover_bus.events.errors import InputError

SCHEMA = Schema(dense=("a",))


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "NEWLINE", "NEWLINE" * 3])
@pytest.mark.parametrize("rows", [1, 511, 512, 513, 2048, 3000])
@pytest.mark.parametrize("piece_bytes", [1000, 4 << 20])
def test_rows_and_blocks_are_found_however_lines_end(tmp_path, monkeypatch, newline, last, rows, piece_bytes):
    monkeypatch.setattr(index, "PIECE_BYTES", piece_bytes)
    lines = [f"0,{n}" for n in range(rows)]
    text = newline.join(["label,a", *lines]) + last.replace("NEWLINE", newline)
    found = build_index(write(tmp_path / "log.csv", text), SCHEMA)
    assert (found.rows, found.header, found.line(0)) == (rows, ("label", "a"), 2)
    blocks = np.arange(len(found.offsets) - 1)
    assert len(blocks) == -(-rows // 512)
    assert found.read(blocks).decode().split() == lines
    assert found.read(blocks[-1:]).decode().split() == lines[(rows - 1) // 512 * 512 :]


def test_a_file_without_a_header_counts_its_first_line(tmp_path):
    found = build_index(
        write(tmp_path / "log.csv", "0,1\n0,2\n"), Schema(dense=("a",), columns=("label", "a"))
    )
    assert (found.rows, found.header, found.line(0)) == (2, None, 1)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert build_index(write(tmp_path / "log.csv", "\ufefflabel,a\n0,1\n"), SCHEMA).header == ("label", "a")


def test_what_is_no_click_log_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "LINE_BYTES", 1000)
    cases = {
        tmp_path / "none.csv": "no file .*none.csv",
        tmp_path: "is a directory: name a file",
        write(tmp_path / "empty.csv", ""): "empty.csv is empty",
        write(tmp_path / "header.csv", "label,a\n"): "has a header but no rows",
        write(tmp_path / "blank.csv", "label,a\n\n\n"): "has a header but no rows",
        write(tmp_path / "nameless.csv", "\n0,1\n"): "line 1: no column names",
        write(tmp_path / "binary.csv", "label,a\n" + "x" * 3000): "a line is longer than",
    }
    for path, message in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            build_index(path, SCHEMA)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_refused(tmp_path):
    path = write(tmp_path / "log.csv", "label,a\n0,1\n")
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        build_index(path, SCHEMA)


@pytest.mark.parametrize("quoted", ['0,"two\nlines"', '0,"""a\n"', 'a"b,"x\ny"', 'a",“x,"y\nz"'])
def test_a_quoted_newline_is_refused_by_file_and_line(tmp_path, quoted):
    text = "label,a\n" + "0,1\n" * 700 + quoted + "\n0,1\n"
    with pytest.raises(InputError, match=r"log.csv, line 702: a quoted field goes on in the next line"):
        build_index(write(tmp_path / "log.csv", text), SCHEMA)


@pytest.mark.parametrize("line", ['0,"a,b"', '0,"say ""hi"""', '0,5" disk', '"0","1"', '0,a"b"', '0,""'])
def test_quotes_that_close_on_their_line_are_accepted(tmp_path, line):
    assert build_index(write(tmp_path / "log.csv", f"label,a\n{line}\r\n0,1\n"), SCHEMA).rows == 2


@given(st.text(alphabet='",ab', max_size=12))
@settings(max_examples=300, deadline=None)
def test_a_line_ends_inside_quotes_exactly_when_the_csv_module_reads_on(line):
    reads_on = len(list(csv.reader([line + "\n", "z\n"]))) == 1
    assert ends_inside_quotes(line.encode(), b",") == reads_on


@given(st.lists(st.text(alphabet='",ab', min_size=1, max_size=8), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_the_vectorised_check_agrees_with_the_csv_module_on_every_file(tmp_path_factory, lines):
    path = write(tmp_path_factory.getbasetemp() / "quotes.csv", "label,a\n" + "\n".join(lines) + "\n")
    broken = [n for n, line in enumerate(lines) if ends_inside_quotes(line.encode(), b",")]
    if broken:
        with pytest.raises(InputError, match=f"line {broken[0] + 2}: "):
            build_index(path, SCHEMA)
    else:
        assert build_index(path, SCHEMA).rows == len(lines)


def test_raw_criteo_knows_no_quotes(tmp_path):
    row = "\t".join(["0", *["1"] * 13, *['"x'] * 26])
    assert build_index(write(tmp_path / "raw.tsv", f"{row}\n{row}\n"), Schema(format="criteo")).rows == 2


def test_a_cached_index_is_used_until_the_file_changes(tmp_path, monkeypatch):
    path, cache = write(tmp_path / "log.csv", "label,a\n0,1\n0,2\n"), tmp_path / "cache"
    first = build_index(path, SCHEMA, cache)
    assert [file.suffix for file in cache.iterdir()] == [".index"]
    with monkeypatch.context() as without_scan:
        without_scan.setattr(index, "_scan", None)
        again = build_index(path, SCHEMA, cache)
    assert (again.rows, again.offsets.tolist()) == (first.rows, first.offsets.tolist())
    write(path, "label,a\n0,1\n0,2\n0,3\n")
    assert build_index(path, SCHEMA, cache).rows == 3


@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-8], lambda raw: b"", lambda raw: raw[:-1] + b"\7", lambda _: b"foreign"]
)
def test_a_cached_index_that_is_not_what_was_written_is_made_again(tmp_path, change):
    path, cache = write(tmp_path / "log.csv", "label,a\n" + "0,1\n" * 600), tmp_path / "cache"
    first = build_index(path, SCHEMA, cache)
    [stored] = cache.iterdir()
    whole = stored.read_bytes()
    stored.write_bytes(change(whole))
    assert build_index(path, SCHEMA, cache).offsets.tolist() == first.offsets.tolist()
    assert stored.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_scan(tmp_path):
    path, cache = write(tmp_path / "log.csv", "label,a\n0,1\n"), tmp_path / "cache"
    cache.write_text("in the way")
    assert build_index(path, SCHEMA, cache).rows == 1


def test_lines_that_end_in_cr_alone_are_refused_in_words(tmp_path):
    with pytest.raises(InputError, match="line 1: lines end in CR alone"):
        build_index(write(tmp_path / "log.csv", "label,a\r0,1\r"), SCHEMA)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path):
    path = write(tmp_path / "log.csv", "label,a\n0,1\n")
    found = build_index(path, SCHEMA)
    write(path, "label,a\n0,1\n0,2\n")
    with pytest.raises(InputError, match="changed while it was read"):
        found.read(np.array([0]))
