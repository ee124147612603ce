"""A trained model outside its job: load the file, look up what a row needs, predict. No stack, no servers, no training data.

    model = scoring.load("model.npz")
    model.predict([{"user_id": "17", "item_id": "4", "age": 31}])     # float32[1]

Fed by what `rover export` and `rover checkpoint restore` write (model_file.py); used by `rover predict` and by serving programs.
It is apart because it needs numpy and the file alone: the features are read by the readers of click logs, so a row scores as it did
in training, and an id that training never saw has its first value (protocol P4).
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.click_log import ClickLog
from rover_bus.client.data.columns import Columns
from rover_bus.client.data.parsing import parse_columns
from rover_bus.client.data.scaling import Scaling
from rover_bus.client.data.schema import ColumnLayout, Schema
from rover_bus.client.model_file import ModelFile, check_arrays, read_model
from rover_bus.client.programs import SCORER, SCORING, find_example
from rover_bus.events.errors import InputError
from rover_bus.events.model_card import HASH
from rover_bus.ps.hashing import mix, salt_of
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.spec import Dense, Growing, Hashed, Table

Scores = NDArray[np.float32]
Scorer = Callable[["Model", Columns], Scores]
Row = Mapping[str, object]


def load(path: str | Path, scoring: str = "") -> Model:
    """Read a model file. `scoring`: module:function in place of the one that the job named. Raises InputError, one line."""
    return Model(read_model(path), scoring, str(path))


class Model:
    """A model file in memory. `card` says where it came from; `settings` is the job file's `[model]` table."""

    def __init__(self, file: ModelFile, scoring: str = "", path: str = "the model") -> None:
        self.card, self._arrays, self._path = file.card, file.arrays, path
        self.settings: dict[str, Any] = file.card.settings
        self._scoring = scoring or file.card.scoring
        self._scorer: Scorer | None = None
        try:
            tables = msgspec.convert(file.card.tables, list[Table])
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: its tables cannot be read: {error}") from None
        self.tables: dict[str, Table] = {table.name: table for table in tables}
        check_arrays(self._arrays, tables, path)

    # -- what a row becomes ------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """How the training data was read. Raises InputError for a model whose program read its data itself."""
        if not self.card.data_schema:
            raise InputError(
                f"{self._path} names no columns: its program read its data itself, and must score it itself"
            )
        return Schema.parse(self.card.data_schema)

    @property
    def scaling(self) -> Scaling:
        """How dense columns were scaled. Raises InputError where that is not known, cannot be, or ids are hashed in another way."""
        if self.card.features is None:
            raise InputError(
                f"{self._path} holds no scaling: its program did not read the data by a ClickLog or PartitionLog"
            )
        if self.card.hash != HASH:
            raise InputError(
                f"{self._path} hashes ids by {self.card.hash!r}, this release by {HASH!r}: score with the release that wrote it"
            )
        given, columns = self.card.features, len(self.schema.dense_names)
        counted = len(given.means) == len(given.deviations) == columns
        if not counted or not all(deviation > 0 for deviation in given.deviations):
            raise InputError(
                f"{self._path}: its scaling is not that of {columns} dense columns with deviations above 0: export it again"
            )
        return Scaling.of(given)

    def features(self, rows: Sequence[Row]) -> Columns:
        """Turn rows into the arrays that the program trained on. A row maps column names to texts or numbers, as in the data file.

        A value that is None or absent is an empty field. The label is not needed. Raises InputError naming an unusable row.
        """
        schema = self.schema
        names = [*schema.dense_names, *schema.categorical_names, *schema.multi]
        for place, row in enumerate(rows):
            if not any(name in row for name in names):
                raise InputError(f"row {place} has none of the model's columns: {', '.join(names)}")
        dense, categorical = len(schema.dense_names), len(schema.categorical_names)
        layout = ColumnLayout(
            width=len(names),
            label=None,
            dense=tuple(range(dense)),
            categorical=tuple(range(dense, dense + categorical)),
            multi=tuple(range(dense + categorical, len(names))),
        )
        text = _to_lines(rows, names, schema)
        columns, unusable = parse_columns(text, layout, schema, self.scaling)
        if unusable:
            line, reason = unusable[0]
            raise InputError(f"row {line} cannot be used: {reason}")
        return columns

    # -- what was learned --------------------------------------------------------------------------------------------------

    def rows(self, table: str, ids: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of a table for integer ids of any shape: shape + (width,). An unseen id has its first value."""
        declared = self._declared(table)
        if isinstance(declared, Dense):
            raise InputError(f"{table!r} is a dense array: model.array({table!r}) returns it")
        ids = np.asarray(ids)
        flat = ids.reshape(-1).astype(np.int64)
        found = self._hashed(declared, flat) if isinstance(declared, Hashed) else self._grown(declared, flat)
        return found.reshape(*ids.shape, declared.width)

    def array(self, name: str) -> NDArray[Any]:
        """Return a dense array, or all rows of a table in the order of their ids."""
        self._declared(name)
        return self._arrays[name]

    def read(self, table: str, ids: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return what `Parameters.read` returns during training: code that evaluates there runs here as well."""
        return self.array(table) if ids is None else self.rows(table, ids)

    def _declared(self, name: str) -> Table:
        try:
            return self.tables[name]
        except KeyError:
            raise InputError(
                f"no table {name!r} in {self._path} (there are: {', '.join(self.tables)})"
            ) from None

    def _hashed(self, table: Hashed, ids: NDArray[np.int64]) -> NDArray[Any]:
        if table.mixed:
            ids = (mix(ids.view(np.uint64)) >> np.uint64(1)).view(np.int64)
        return self._arrays[table.name][np.mod(ids, table.rows)]

    def _grown(self, table: Growing, ids: NDArray[np.int64]) -> NDArray[Any]:
        known, values = self._arrays[f"{table.name}.ids"], self._arrays[table.name]
        places = np.searchsorted(known, ids)
        seen = np.zeros(len(ids), bool)
        inside = places < len(known)
        seen[inside] = known[places[inside]] == ids[inside]
        found = np.empty((len(ids), table.width), table.dtype)
        found[seen] = values[places[seen]]
        key = np.uint64(table_key(self.card.seed, salt_of(table.name)))
        found[~seen] = first_values(table.init, key, ids[~seen], table.width, table.dtype)
        return found

    # -- prediction --------------------------------------------------------------------------------------------------------

    def predict(self, rows: Sequence[Row] | Columns) -> Scores:
        """Return the model's prediction for each row, float32[n]: for `dlrm` the probability of a click. Raises InputError."""
        columns = rows if isinstance(rows, Columns) else self.features(rows)
        if self._scorer is None:
            self._scorer = find_scorer(self._scoring, self._path)
        return np.asarray(self._scorer(self, columns), np.float32)

    def predict_file(self, path: str | Path) -> tuple[Scores, list[str]]:
        """Score each row of a data file in the training data's format, with or without labels.

        Returns float32[rows], NaN where a row cannot be used, and a line of text for each of those. Raises InputError, also
        where no row can be used: the file is of another format, or not of this model.
        """
        log = ClickLog(path, self.schema, scaling=self.scaling, labelled=False)
        scores = np.full(log.records, np.nan, np.float32)
        unusable: list[str] = []
        for columns, _places, skipped in log.scan():
            scores[columns.rows] = self.predict(columns)
            unusable += [f"line {row.line}: {row.reason}" for row in skipped]
        if len(unusable) == log.records:
            raise InputError(
                f"{path} has no row that {self._path} can score ({unusable[0]}): is it of the model's format?"
            )
        return scores, unusable


def find_scorer(named: str, path: str) -> Scorer:
    """Return the function that predicts. Raises InputError that says how to name one."""
    how = 'set `scoring = "module:function"` in the job file before training, or name it now (`--scoring`, `load(path, scoring=)`)'
    if not named:
        raise InputError(f"{path} does not say how its program predicts: {how}")
    if named in SCORING:
        return _built_in(named)
    if not SCORER.fullmatch(named):
        raise InputError(f"{named!r} is not module:function: {how}")
    module, _, function = named.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"cannot find {named!r}: {error}; run where {module}.py is, or put its folder on PYTHONPATH"
        ) from None
    return found  # type: ignore[no-any-return]


def _built_in(name: str) -> Scorer:
    """Load the file under a name of its own: a module of the user's may have the same one."""
    module_name = f"rover_bus_program_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, find_example(SCORING[name]))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[module_name].predict  # type: ignore[no-any-return]


def score_lines(scores: Scores) -> str:
    """Return `row,score` for every row of a data file as CSV; the score of a row that cannot be used is empty."""
    lines = [
        f"{row},{'' if np.isnan(score) else f'{score:.9g}'}\n" for row, score in enumerate(scores.tolist())
    ]
    return "row,score\n" + "".join(lines)


def write_scores(path: str | Path, scores: Scores) -> None:
    """Write `score_lines` to a file: all of it is there, or nothing."""
    partial = Path(f"{path}.partial")
    partial.write_text(score_lines(scores))
    partial.replace(path)


def _to_lines(rows: Sequence[Row], names: Sequence[str], schema: Schema) -> bytes:
    """Write rows as the data file would have them, so that they are read by the code that read it."""
    out = io.StringIO()
    separator = schema.separator.decode()
    fields = [[_text(row.get(name), schema.multi.get(name, "")) for name in names] for row in rows]
    if schema.quoting:
        csv.writer(out, delimiter=separator, lineterminator="\n").writerows(fields)
    else:
        for place, each in enumerate(fields):
            if any(separator in field or "\n" in field for field in each):
                raise InputError(f"row {place}: a value holds the separator of the format {schema.format!r}")
            out.write(separator.join(each) + "\n")
    return out.getvalue().encode()


def _text(value: object, mark: str) -> str:
    if value is None:
        return ""
    if mark and isinstance(value, list | tuple | set | frozenset):
        return mark.join(str(each) for each in value)
    return str(value)
