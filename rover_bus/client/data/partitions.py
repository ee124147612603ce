"""A stream of clicks: a directory of growing files, one file a partition, read by offset.

    clicks/
        eu.csv              a partition: every file that is not hidden (`.`, `_`) and no seal. Rows are appended while the job runs
        eu.csv.sealed       its seal, of any content: the writer puts it there after the last row, and appends nothing afterwards
        us.csv

Each file is a click log of its own (header, if the schema has one); offsets count its rows from 0. A row is readable once its line
is ended. All partitions are there, perhaps empty, when the job begins; a file that appears later is not part of it. Rows come in
the order of the file: a stream is read once, and not shuffled.

Fed by the file system and a schema; feeds the lease requests of `client` (what is readable) and training loops (what was leased).
It is apart from `click_log` because here nothing has a total: no epochs, no permutation, no digest of content. One reader thread
an object.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from rover_bus.client.data.columns import Batch
from rover_bus.client.data.fields import split_rows
from rover_bus.client.data.growing import SEAL, GrowingFile
from rover_bus.client.data.numbers import Flags, Floats, parse_numbers
from rover_bus.client.data.order import BLOCK_ROWS, WINDOW_BLOCKS
from rover_bus.client.data.parsing import ParsedPart, parse_columns
from rover_bus.client.data.scaling import Scaling
from rover_bus.client.data.schema import Schema
from rover_bus.client.spans import HighWater, Records
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.errors import InputError, TemporaryError
from rover_bus.events.job import Dataset
from rover_bus.events.units import require_text

SAMPLE_BLOCKS = 16
"""How many blocks of 512 rows the scaling is taken from, shared out among the partitions."""


class NotYetReadable(TemporaryError):
    """Rows that another worker has seen are not here yet: a shared file system shows them a little later."""

    code = "not_yet_readable"


class _Window(NamedTuple):
    """Rows [first, end) of a partition, parsed."""

    first: int
    end: int
    part: ParsedPart


class PartitionLog:
    """The partitions of a directory. Raises InputError, one line, for what cannot be read.

    `scaling`: how dense values are scaled; by default taken from the first rows of the partitions that are there now (16 blocks of
    512 in all). A worker that joins later takes over the scaling that the first one registered (`adopt`).
    """

    def __init__(
        self,
        directory: str | Path,
        schema: Schema,
        *,
        scaling: Scaling | None = None,
        windows_cached: int = 3,
    ) -> None:
        schema.check()
        self.path = Path(directory)
        self.schema = schema
        self._files = {path.name: GrowingFile(path, schema) for path in _find_partitions(self.path)}
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._windows_cached = windows_cached
        self.high_water()
        self.scaling = scaling or self._fit_scaling()

    @property
    def partitions(self) -> list[str]:
        """Their names: those of the files, ascending."""
        return list(self._files)

    @property
    def records(self) -> int:
        """Rows that were readable at the last look, over all partitions: for people, never a total."""
        return sum(file.rows for file in self._files.values())

    @property
    def digest(self) -> str:
        """Tell this stream from others (S6): a hash of the schema. What grows cannot be hashed; partitions are compared by name."""
        return hashlib.blake2b(msgspec.json.encode(self.schema, order="sorted"), digest_size=16).hexdigest()

    def dataset(self, batch_size: int, epochs: int = 1, seed: int = 0) -> Dataset:
        """Return what is registered: partitions without a total. Raises InputError for more than one epoch."""
        if epochs != 1:
            raise InputError(f"{self.path} is a stream, which is read once: set epochs to 1, not {epochs}")
        return Dataset(
            records=0,
            batch_size=batch_size,
            epochs=1,
            seed=seed,
            digest=self.digest,
            partitions=self.partitions,
            features=self.scaling.features,
        )

    def adopt(self, registered: Dataset) -> None:
        """Read what the job registered: the partitions that it knows, scaled as it says. Raises InputError for a missing one."""
        for name in registered.partitions:
            if name not in self._files:
                raise InputError(
                    f"{self.path} has no partition {name!r}, which this job reads: was it moved away?"
                )
        self._files = {name: self._files[name] for name in registered.partitions}
        if registered.features is not None:
            self.scaling = Scaling.of(registered.features)
            self._windows.clear()

    def high_water(self) -> HighWater:
        """Look what was added and return the complete rows of each partition, and which are sealed."""
        for file in self._files.values():
            file.look()
        return HighWater(
            {name: file.rows for name, file in self._files.items()},
            [name for name, file in self._files.items() if file.sealed],
        )

    def read(self, partition: str, first_offset: int, end_offset: int) -> Batch:
        """Return the rows [first_offset, end_offset) of a partition: its usable ones, with offsets as positions, the others named.

        Raises NotYetReadable when they are not all here yet, InputError when they never will be.
        """
        if not 0 <= first_offset < end_offset:
            raise InputError(f"partition {partition!r} has no rows {first_offset} to {end_offset}")
        window = self._windows.pop(partition, None)
        if window is None or not window.first <= first_offset < end_offset <= window.end:
            window = self._load(self._files[partition], first_offset, end_offset)
        self._windows[partition] = window
        while len(self._windows) > self._windows_cached:
            self._windows.popitem(last=False)
        part = window.part.cut(first_offset, end_offset)
        return Batch(
            **vars(part.columns),
            epoch=0,
            number=-1,
            positions=part.places,
            skipped=part.skipped,
            file=str(self.path / partition),
        )

    def batch_of(self, epoch: int, number: int, dataset: Dataset, records: Records) -> Batch:
        """Return batch `number` of the stream, which is these records."""
        batch = self.read(*records)
        shift = number * dataset.batch_size - records.first
        skipped = tuple(msgspec.structs.replace(row, position=row.position + shift) for row in batch.skipped)
        return replace(batch, epoch=epoch, number=number, skipped=skipped)

    def _load(self, file: GrowingFile, first: int, end: int) -> _Window:
        """Parse a window of rows from a block's start on: the next batches are most likely in it."""
        if file.rows < end:
            file.look()
        if file.rows < end:
            text = f"{file.path} has {file.rows} rows, but {end} were seen by another worker"
            raise InputError(f"{text}, and it is sealed") if file.sealed else NotYetReadable(text)
        block = first // BLOCK_ROWS
        end_block = max(block + WINDOW_BLOCKS, -(-end // BLOCK_ROWS))
        end_block = min(end_block, -(-file.rows // BLOCK_ROWS))
        end_row = min(end_block * BLOCK_ROWS, file.rows)
        return _Window(block * BLOCK_ROWS, end_row, self._parse(file, block, end_block))

    def _parse(self, file: GrowingFile, block: int, end_block: int) -> ParsedPart:
        first = block * BLOCK_ROWS
        columns, unusable = parse_columns(file.read(block, end_block), file.layout, self.schema, self.scaling)
        columns = replace(columns, rows=columns.rows + first)
        skipped = (
            SkippedRow(first + line, first + line, file.line(first + line), reason)
            for line, reason in sorted(unusable)
        )
        return ParsedPart(columns, columns.rows, tuple(skipped))

    def _fit_scaling(self) -> Scaling:
        """Take the scaling from the first blocks of up to 16 partitions, evenly chosen."""
        names = self.partitions
        chosen = sorted({names[round(at)] for at in np.linspace(0, len(names) - 1, SAMPLE_BLOCKS)})
        blocks = SAMPLE_BLOCKS // len(chosen)
        samples = [self._sample(self._files[name], blocks) for name in chosen if self._files[name].rows]
        width = len(self.schema.dense_names)
        values = np.concatenate([np.empty((0, width)), *(values for values, _ in samples)])
        missing = np.concatenate([np.empty((0, width), bool), *(missing for _, missing in samples)])
        return Scaling.fit(values, missing)

    def _sample(self, file: GrowingFile, blocks: int) -> tuple[Floats, Flags]:
        data = file.read(0, min(blocks, -(-file.rows // BLOCK_ROWS)))
        rows = split_rows(data, file.layout.width, self.schema.separator, self.schema.quoting)
        return parse_numbers(rows.column(file.layout.dense))


def _find_partitions(directory: Path) -> list[Path]:
    try:
        entries = sorted(directory.iterdir())
    except FileNotFoundError:
        raise InputError(f"no directory {directory}") from None
    except NotADirectoryError:
        raise InputError(f"{directory} is a file: a stream is a directory of them") from None
    except OSError as error:
        raise InputError(f"cannot read {directory}: {error.strerror}") from None
    found = [
        path
        for path in entries
        if path.is_file() and not path.name.startswith((".", "_")) and not path.name.endswith(SEAL)
    ]
    for path in found:
        require_text(str(path), "partition")
    if not found:
        raise InputError(
            f"{directory} holds no partition: put its files there before the job begins, empty if need be"
        )
    return found
