"""A model outside its job: the same probabilities as in training, unseen ids included; bad files in one line each."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dlrm import Dlrm, Settings, look_up

from rover_bus.cli.views.results import model_of, write_whole
from rover_bus.client.data import ClickLog, Schema
from rover_bus.client.model_file import CARD, ModelFile, read_model, write_model
from rover_bus.client.scoring import Model, load
from rover_bus.client.witness import NAME as WITNESS
from rover_bus.events.errors import InputError
from rover_bus.events.job import Dataset, DataSpec, JobSpec
from rover_bus.events.model_card import card_of
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.spec import Add, Hashed, Normal, Sgd
from rover_bus.ps.store import BatchKey

SCHEMA = {"format": "csv", "dense": ["age", "spend"], "categorical": ["user"], "multi": {"tags": "|"}}
SETTINGS = {"width": 4, "top": [8]}
SEED = 11


def write_visits(
    path: Path, rows: int, seed: int, users: int = 40, label: bool = True
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    written = []
    for _ in range(rows):
        age = "" if rng.random() < 0.1 else str(rng.integers(90))
        tags = "|".join(f"t{n}" for n in rng.integers(9, size=rng.integers(4)))
        user = f'u, "{rng.integers(users)}"'
        row = {"age": age, "spend": f"{rng.normal():.3f}", "user": user, "tags": tags}
        written.append(row | ({"label": int(rng.integers(2))} if label else {}))
    names = [*(["label"] if label else []), "age", "spend", "user", "tags"]
    lines = [",".join('"' + str(row[name]).replace('"', '""') + '"' for name in names) for row in written]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return written


class Trained:
    """A model trained in this process, exported, and what it predicted before."""

    def __init__(self, folder: Path) -> None:
        write_visits(folder / "train.csv", 400, seed=1)
        self.rows = write_visits(
            folder / "eval.csv", 200, seed=2, users=80
        )  # half of the users were never seen
        log = ClickLog(folder / "train.csv", Schema.parse(SCHEMA))
        network = Dlrm(log.schema, Settings.parse(SETTINGS))
        parameters = LocalParameters(SEED)
        hashed = Hashed(name="hashed", rows=7, width=2, optimizer=Sgd(), init=Normal(0.5), mixed=True)
        witness = Hashed(name=WITNESS, rows=5, width=1, optimizer=Add(), dtype="int32")
        parameters.declare(*network.tables(), hashed, witness)
        dataset = log.dataset(50)
        for number in range(dataset.batches):
            batch = log.batch(0, number, dataset)
            pulled = parameters.pull(network.ids(batch))
            parameters.push(BatchKey(0, number), network.gradients(batch, pulled)[1], pulled=pulled)
        evaluated = ClickLog(folder / "eval.csv", log.schema, scaling=log.scaling)
        columns = evaluated.read(np.arange(evaluated.records))[0]
        self.predicted = network.predict(columns, look_up(network, parameters, columns))
        self.parameters, self.path = parameters, folder / "model.npz"
        self.export(dataset)

    def export(self, dataset: Dataset | None) -> None:
        data = DataSpec(train="train.csv", schema=SCHEMA, seed=SEED)
        spec = JobSpec(name="visits", program=["x"], data=data, model=SETTINGS, scoring="dlrm")
        tables = self.parameters._tables.catalogue.tables()
        model = model_of(self.parameters.export(), tables, card_of(spec, "ab12", dataset), SEED)
        write_whole(self.path, lambda file: write_model(file, model))

    def change_card(self, **changes: Any) -> None:
        arrays, card = read_model(self.path)
        body = msgspec.to_builtins(card) | changes
        np.savez(self.path, **arrays, **{CARD: np.frombuffer(msgspec.json.encode(body), np.uint8)})

    def change_array(self, name: str, change: Any) -> None:
        """Write the file again with `change(array)` in place of an array; without it where that is None."""
        with np.load(self.path) as stored:
            arrays = {key: stored[key] for key in stored.files}
        arrays[name] = change(arrays[name])
        np.savez(self.path, **{key: array for key, array in arrays.items() if array is not None})


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def test_rows_and_files_score_as_the_job_scored_them_unseen_ids_included(
    trained: Trained, tmp_path: Path
) -> None:
    model = load(trained.path)
    assert np.abs(model.predict(trained.rows) - trained.predicted).max() <= 1e-6
    scores, unusable = model.predict_file(tmp_path / "eval.csv")
    assert unusable == []
    assert np.abs(scores - trained.predicted).max() <= 1e-6


def test_a_file_without_labels_scores_as_one_with_them(trained: Trained, tmp_path: Path) -> None:
    write_visits(tmp_path / "bare.csv", 200, seed=2, users=80, label=False)
    scores, _ = load(trained.path).predict_file(tmp_path / "bare.csv")
    assert len(scores) == 200
    assert np.isfinite(scores).all()


def test_rows_of_tables_are_those_of_the_job_and_unseen_ids_have_their_first_values(trained: Trained) -> None:
    model, ids = load(trained.path), np.array([[3, -5], [2**62, 8]])
    for table in ("embedding.user", "hashed"):
        theirs = trained.parameters.read(table, ids)
        assert model.rows(table, ids).tobytes() == theirs.tobytes()
        assert model.rows(table, ids).any(axis=-1).all(), "first values that are zeros would prove nothing"
    assert model.array("linear").shape == trained.parameters.read("linear").shape


def test_the_file_is_read_by_numpy_alone_and_holds_no_witness(trained: Trained) -> None:
    with np.load(trained.path, allow_pickle=False) as stored:
        assert WITNESS not in stored.files
        assert stored["embedding.user"].shape[0] == stored["embedding.user.ids"].shape[0]
        assert b'"uid":"ab12"' in stored[CARD].tobytes()


def shorten(trained: Trained) -> None:
    raw = trained.path.read_bytes()
    trained.path.write_bytes(raw[: len(raw) // 2])


def drop_card(trained: Trained) -> None:
    np.savez(trained.path, w=np.zeros(3))


def bare_array(trained: Trained) -> None:
    with trained.path.open("wb") as file:
        np.save(file, np.zeros(3))


def other_format(trained: Trained) -> None:
    trained.change_card(format=2)


def text(trained: Trained) -> None:
    trained.path.write_text("row,score\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shorten, "no whole model file"),
        (drop_card, "has no model.json"),
        (bare_array, "single array"),
        (other_format, "has format 2, this release reads 1"),
        (text, "no whole model file"),
        (lambda trained: trained.path.unlink(), "there is no model file"),
    ],
)
def test_what_is_no_model_file_is_refused_in_one_line(trained: Trained, damage: Any, said: str) -> None:
    damage(trained)
    with pytest.raises(InputError, match=said) as refused:
        load(trained.path)
    assert len(str(refused.value).splitlines()) == 1


def test_no_mutated_file_ends_in_anything_but_one_line(trained: Trained) -> None:
    whole, chance = trained.path.read_bytes(), random.Random(7)
    refused = 0
    print("seed 7")
    for _ in range(400):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        trained.path.write_bytes(raw[: chance.randrange(len(raw))] if chance.random() < 0.2 else raw)
        try:
            load(trained.path)
        except InputError as error:
            refused += len(str(error).splitlines()) == 1
    assert refused > 300


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("embedding.user", lambda array: array[:, :2], "'embedding.user' is float32"),
        ("embedding.user", lambda array: array[:3], "'embedding.user.ids' is int64"),
        ("embedding.user", lambda array: array.astype(np.float64), "not float32"),
        ("embedding.user.ids", lambda array: None, "'embedding.user.ids' is missing"),
        ("embedding.user.ids", lambda array: array[::-1], "'embedding.user.ids' does not ascend"),
        ("embedding.user.ids", lambda array: array.astype(np.float32), "not int64"),
        ("hashed", lambda array: array[:3], "'hashed' is float32"),
        ("linear", lambda array: array[1:], "'linear' is float32"),
        ("linear", lambda array: None, "'linear' is missing"),
        ("linear", lambda array: array.sum(), "'linear' is float32"),
        ("embedding.user", lambda array: array.sum(), "'embedding.user' is float32"),
    ],
)
def test_an_array_that_is_not_what_the_card_declares_is_refused_by_its_name(
    trained: Trained, name: str, change: Any, said: str
) -> None:
    trained.change_array(name, change)
    with pytest.raises(InputError, match=said):
        load(trained.path)


@pytest.mark.parametrize(
    "features",
    [
        {"means": [1.0], "deviations": [1.0]},
        {"means": [1.0, 1.0], "deviations": [1.0, 0.0]},
        {"means": [1.0, 1.0], "deviations": [1.0]},
    ],
)
def test_a_scaling_that_is_not_that_of_the_columns_is_refused(
    trained: Trained, features: dict[str, list[float]]
) -> None:
    trained.change_card(features=features)
    with pytest.raises(InputError, match="its scaling is not that of 2 dense columns"):
        load(trained.path).predict(trained.rows)


def test_a_file_of_another_format_is_refused_with_its_first_row(tmp_path: Path) -> None:
    Trained(tmp_path)
    arrays, card = read_model(tmp_path / "model.npz")
    headless = msgspec.structs.replace(
        card, data_schema={**SCHEMA, "header": False, "columns": ["label", "age", "spend", "user", "tags"]}
    )
    (tmp_path / "other.csv").write_text("1\t2\n" * 3)
    with pytest.raises(InputError, match=r"no row that .* can score \(line 1: .*\): is it of"):
        Model(ModelFile(arrays, headless)).predict_file(tmp_path / "other.csv")


def test_data_without_a_column_is_refused_by_its_name(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("label,age,user,tags\n1,2,3,4\n")
    with pytest.raises(InputError, match="no column 'spend'"):
        load(trained.path).predict_file(tmp_path / "other.csv")


def test_a_model_that_names_no_function_says_how_to_name_one(trained: Trained) -> None:
    trained.change_card(scoring="")
    with pytest.raises(InputError, match=r"scoring = .module:function.* --scoring|--scoring"):
        load(trained.path).predict(trained.rows)


def test_a_program_of_ones_own_is_scored_by_the_function_that_it_named(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_scorer.py").write_text("def ages(model, columns):\n    return columns.dense[:, 0]\n")
    monkeypatch.chdir(tmp_path)
    trained.change_card(scoring="my_scorer:ages")
    model = load(trained.path)
    assert model.predict(trained.rows).tolist() == model.features(trained.rows).dense[:, 0].tolist()
    for wrong in ("my_scorer:none", "no_such_module:f", "my_scorer; import os"):
        with pytest.raises(InputError):
            load(trained.path, scoring=wrong).predict(trained.rows)


def test_a_row_without_any_column_of_the_model_is_refused(trained: Trained) -> None:
    with pytest.raises(InputError, match="row 1 has none of the model's columns"):
        load(trained.path).predict([trained.rows[0], {"AGE": 3}])


def test_a_model_without_registered_features_says_so(trained: Trained) -> None:
    trained.export(None)
    with pytest.raises(InputError, match="holds no scaling"):
        load(trained.path).predict(trained.rows)


def test_writing_a_model_ends_in_a_whole_file(trained: Trained) -> None:
    buffer = io.BytesIO()
    file = read_model(trained.path)
    write_model(buffer, file)
    buffer.seek(0)
    with np.load(buffer) as stored:
        assert set(stored.files) == {*file.arrays, CARD}
    assert Model(file).card.job == "visits"
