"""Part files go to the disk while they are still being written, and no error of it is lost."""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import pytest

from rover_bus.flash import files
from rover_bus.flash.errors import StorageFailed
from rover_bus.flash.files import DirectoryFiles

BYTES = np.arange(1 << 16, dtype=np.uint8)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(files, "SYNC_BYTES", len(BYTES))


def test_what_is_written_is_what_is_read_and_no_thread_is_left(tmp_path):
    port = DirectoryFiles(tmp_path)
    sink = port.create("parts/a")
    for _ in range(50):
        sink.write(BYTES)
    sink.sync()
    sink.close()
    back = np.zeros(50 * len(BYTES), np.uint8)
    assert port.read_into("parts/a", 0, back) == len(back)
    np.testing.assert_array_equal(back, np.tile(BYTES, 50))
    assert [each.name for each in threading.enumerate() if each.name == "rover-sync"] == []


def test_an_error_that_the_disk_reports_early_fails_the_file_and_not_only_the_thread_that_heard_it(
    tmp_path, monkeypatch
):
    def broken(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    sink = DirectoryFiles(tmp_path).create("parts/a")
    sink.write(BYTES)
    try:
        with pytest.raises(StorageFailed, match="Input/output error"):
            sink.sync()
    finally:
        sink.close()


def test_a_file_that_is_given_up_closes_after_its_thread(tmp_path):
    sink = DirectoryFiles(tmp_path).create("parts/a")
    sink.write(BYTES)
    sink.close()
    assert [each.name for each in threading.enumerate() if each.name == "rover-sync"] == []
