"""The example model: its gradients are those of its loss, and it learns what is planted."""

import clicks
import numpy as np
import pytest
from dlrm import Dlrm, Settings
from scoring import auc, evaluate, log_loss

from rover_bus.client.data import Bag, ClickLog, Columns, Schema
from rover_bus.events.errors import InputError
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.store import BatchKey

SCHEMAS = {
    "all kinds": Schema(dense=("d0", "d1"), categorical=("a", "b"), multi={"m": "|", "n": ";"}),
    "no dense": Schema(categorical=("a", "b", "c")),
    "only dense": Schema(dense=("d0", "d1", "d2")),
    "one field": Schema(categorical=("a",)),
    "only multi": Schema(multi={"m": "|"}),
}


def make_columns(schema, rows, rng):
    """Rows with small ids, so that they repeat inside the batch; some bags are empty."""
    sizes = {name: rng.integers(0, 4, rows) for name in schema.multi}
    return Columns(
        np.arange(rows),
        rng.integers(0, 2, rows).astype(np.float32),
        rng.normal(size=(rows, len(schema.dense_names))).astype(np.float32),
        np.zeros(rows, np.int64),
        rng.integers(0, 3, (rows, len(schema.categorical_names))),
        {n: Bag(rng.integers(0, 3, s.sum()), np.concatenate([[0], np.cumsum(s)])) for n, s in sizes.items()},
    )


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("layers", [((), ()), ((5,), (6, 4))])
def test_gradients_are_the_differences_of_the_loss(kind, layers):
    rng = np.random.default_rng(8)
    schema = SCHEMAS[kind]
    model = Dlrm(schema, Settings(width=3, bottom=layers[0], top=layers[1]))
    batch = make_columns(schema, 7, rng)
    parameters = LocalParameters(seed=1)
    parameters.declare(*model.tables())
    pulled = parameters.pull(model.ids(batch))
    # In float64 and away from zero, so that differences are exact enough and no ReLU stands on its edge.
    values = {name: rng.normal(0, 0.7, array.shape) for name, array in pulled.items()}
    loss, gradients = model.gradients(batch, values)
    assert set(gradients) == {table.name for table in model.tables()}
    for name, value in values.items():
        assert gradients[name].shape == value.shape
        for place in rng.permutation(value.size)[:6]:
            step = np.zeros(value.size)
            step[place] = 1e-5
            step = step.reshape(value.shape)
            above = model.gradients(batch, {**values, name: value + step})[0]
            below = model.gradients(batch, {**values, name: value - step})[0]
            slope = (above - below) / 2e-5 * len(batch)
            assert gradients[name].ravel()[place] == pytest.approx(slope, rel=2e-3, abs=2e-4), (name, place)
    assert loss > 0


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_batch_without_usable_rows_gives_no_gradient(kind):
    schema = SCHEMAS[kind]
    model = Dlrm(schema)
    batch = make_columns(schema, 0, np.random.default_rng(0))
    parameters = LocalParameters(seed=1)
    parameters.declare(*model.tables())
    loss, gradients = model.gradients(batch, parameters.pull(model.ids(batch)))
    assert loss == 0.0
    assert all(not np.any(gradient) for gradient in gradients.values())


def test_it_learns_the_planted_signal(tmp_path):
    clicks.write(tmp_path / "train.tsv", 16_000, seed=1)
    best = clicks.write(tmp_path / "eval.tsv", 4000, seed=1, stream=1)
    schema = Schema(format="criteo")
    train = ClickLog(tmp_path / "train.tsv", schema)
    model, dataset = Dlrm(schema, Settings(width=8)), train.dataset(128, seed=1)
    parameters = LocalParameters(seed=1)
    parameters.declare(*model.tables())
    for number in range(dataset.batches):
        batch = train.batch(0, number, dataset)
        _, gradients = model.gradients(batch, parameters.pull(model.ids(batch)))
        parameters.push(BatchKey(0, number), gradients, rate_scale=model.rate_scale(number / dataset.batches))
    result = evaluate(model, parameters, ClickLog(tmp_path / "eval.tsv", schema, scaling=train.scaling))
    print(result.auc, best)
    assert 0.68 < result.auc < best
    assert result.logloss < 0.54
    assert result.scores.shape == (4000,)


def test_rows_that_cannot_be_used_have_no_score(tmp_path):
    (tmp_path / "log.csv").write_text("label,d,c\n1,2,a\n1,2\n0,3,b\n")
    schema = Schema(dense=("d",), categorical=("c",))
    model, parameters = Dlrm(schema), LocalParameters(seed=1)
    parameters.declare(*model.tables())
    result = evaluate(model, parameters, ClickLog(tmp_path / "log.csv", schema))
    assert np.isnan(result.scores).tolist() == [False, True, False]
    assert result.auc in (0.0, 1.0)


def test_auc_is_the_share_of_pairs_in_order_with_ties_counting_half():
    rng = np.random.default_rng(2)
    labels, scores = rng.integers(0, 2, 300).astype(np.float32), rng.integers(0, 20, 300).astype(np.float32)
    clicked, others = scores[labels > 0][:, None], scores[labels == 0]
    assert auc(labels, scores) == pytest.approx(np.mean((clicked > others) + 0.5 * (clicked == others)))
    assert np.isnan(auc(np.ones(3, np.float32), scores[:3]))


def test_log_loss_of_known_scores():
    labels, scores = np.array([1, 0], np.float32), np.array([0.8, 0.4], np.float32)
    assert log_loss(labels, scores) == pytest.approx(-(np.log(0.8) + np.log(0.6)) / 2, rel=1e-6)
    assert log_loss(labels, 1 - labels) == pytest.approx(-np.log(1e-7), rel=1e-3)


def test_a_wrong_model_setting_is_named():
    with pytest.raises(InputError, match=r"unknown field `widht`.*known: width"):
        Settings.parse({"widht": 3})
    assert Settings.parse({"width": 8, "top": [16, 8]}) == Settings(width=8, top=(16, 8))
