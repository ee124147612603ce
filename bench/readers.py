"""How fast click logs are read: raw Criteo rows a second on one core, indexing and shuffled reading apart.

    python -m bench.readers [--json] [--rows 200000] [--batch 512] [--rounds 5]

Makes its own file with examples/clicks.py. A round reads one epoch in the order of protocol P1, by batches, with everything a
training loop gets; its time is CPU time of this process. Beside it, in turns: the csv module with float() and no hashing, the plain
reader that the vectorised one must equal.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rover_bus.client.data import ClickLog, Schema

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import clicks

TARGET_ROWS_PER_S = 150_000


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    started = time.process_time()
    work()
    return time.process_time() - started


def read_epoch(log: ClickLog, batch_size: int, epoch: int) -> int:
    """Read every batch of an epoch; return the rows seen."""
    dataset = log.dataset(batch_size)
    return sum(len(log.batch(epoch, number, dataset)) for number in range(dataset.batches))


def read_plainly(path: Path, rows: int) -> None:
    """Read the first rows with the csv module, numbers by float(), ids left as text."""
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t")):
            if number == rows:
                return
            [float(field) if field else 0.0 for field in row[:14]]


def measure(path: Path, rows: int, batch_size: int, rounds: int) -> dict[str, float]:
    """Return medians over rounds, in rows a CPU second."""
    schema = Schema(format="criteo")
    indexing = [cpu_seconds(lambda: ClickLog(path, schema)) for _ in range(rounds)]
    log = ClickLog(path, schema)
    plain_rows = min(rows, 20_000)
    reading, plain = [], []
    for epoch in range(rounds):
        reading.append(rows / cpu_seconds(lambda epoch=epoch: read_epoch(log, batch_size, epoch)))  # type: ignore[misc]
        plain.append(plain_rows / cpu_seconds(lambda: read_plainly(path, plain_rows)))
    return {
        "rows": rows,
        "file_megabytes": path.stat().st_size / 1e6,
        "index_rows_per_s": rows / statistics.median(indexing),
        "read_rows_per_s": statistics.median(reading),
        "csv_rows_per_s": statistics.median(plain),
        "ratio_to_csv": statistics.median(ours / theirs for ours, theirs in zip(reading, plain, strict=True)),
        "target_rows_per_s": TARGET_ROWS_PER_S,
    }


def main() -> None:
    """Print a table, and with --json one JSON line after it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.tsv"
        clicks.write(path, options.rows, options.seed)
        found = measure(path, options.rows, options.batch, options.rounds)
    for name, value in found.items():
        print(f"{name:>20} {value:>14,.1f}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
