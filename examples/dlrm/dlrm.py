"""A DLRM in numpy: embeddings, bottom and top MLP, dot interactions; forward and backward by hand.

After Naumov et al. 2019 (arXiv:1906.00091), with the linear paths of Wide & Deep and DeepFM added: every id has a weight
of its own, and every interaction reaches the logit directly as well as through the top MLP. The model holds no parameters:
it says which tables it needs (`tables`), which ids a batch touches (`ids`), and turns what was pulled into gradients.

    logit = sum of id weights + linear(interactions) + top MLP(bottom MLP(dense), interactions) + bias
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data import Bag, Columns, Schema
from rover_bus.client.scoring import Model
from rover_bus.events.errors import InputError
from rover_bus.ps.spec import Adagrad, Constant, Dense, Growing, Init, Normal, RowAdagrad, Table, Uniform
from rover_bus.ps.store import Parameters

Array = NDArray[np.float32]
Arrays = dict[str, Any]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[model]` table of a job file. Rates are for gradients summed over a batch: batch sizes need no other rates."""

    width: int = 32  # of the latent vectors; an embedding row is one weight more
    bottom: tuple[int, ...] = ()  # hidden layers between the dense features and their latent vector
    top: tuple[int, ...] = (32,)  # hidden layers between the interactions and the logit
    rate: float = 1.6  # of embeddings, shared out among the vectors of a row: each of them moves the logit
    dense_rate: float = 0.009  # of everything else
    caution: float = 3.0  # first value of Adagrad's sums: rare ids learn as with SGD, frequent ones slow down
    l2: float = 0.04  # decay of an embedding row, each time it is touched
    dense_l2: float = 0.1
    spread: float = 0.01  # deviation of first embeddings
    final_rate: float = 0.0  # share of the rate that is left at the end; it falls in a line

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Settings:
        """Read the table; a wrong key or type is an InputError."""
        try:
            return msgspec.convert(dict(table), cls)
        except msgspec.ValidationError as error:
            known = ", ".join(cls.__struct_fields__)
            raise InputError(f"model settings: {error} (known: {known})") from error


class Dlrm:
    """The network for one schema. `m` is the rows of a batch, `K` its latent vectors a row, `d` their width."""

    def __init__(self, schema: Schema, settings: Settings | None = None) -> None:
        self.settings = settings = settings or Settings()
        self.dense = len(schema.dense_names)
        self.fields = [f"embedding.{name}" for name in schema.categorical_names]
        self.bags = {name: f"embedding.{name}" for name in schema.multi}
        self.vectors = bool(self.dense) + len(self.fields) + len(self.bags)
        self.left, self.right = np.triu_indices(self.vectors, 1)
        self.pairs = self.left * self.vectors + self.right
        self.bottom = [self.dense, *settings.bottom, settings.width] if self.dense else []
        inputs = (settings.width if self.dense else 0) + len(self.pairs)
        self.top = [inputs, *settings.top, 1] if inputs else []

    def tables(self) -> list[Table]:
        """Return what the model trains: a table a field, and the layers."""
        s = self.settings
        rows = RowAdagrad(rate=s.rate / self.vectors, initial=s.caution)
        embeddings: list[Table] = [
            Growing(name=name, width=1 + s.width, optimizer=rows, init=Normal(s.spread), l2=s.l2)
            for name in [*self.fields, *self.bags.values()]
        ]

        def dense(name: str, shape: tuple[int, ...], init: Init) -> Table:
            optimizer = Adagrad(rate=s.dense_rate, initial=s.caution)
            return Dense(name=name, shape=shape, optimizer=optimizer, init=init, l2=s.dense_l2)

        layers = []
        for stack, sizes in (("bottom", self.bottom), ("top", self.top)):
            for n, (a, b) in enumerate(pairwise(sizes)):
                layers.append(dense(f"{stack}.{n}.weight", (a, b), Uniform(math.sqrt(6 / (a + b)))))
                layers.append(dense(f"{stack}.{n}.bias", (b,), Constant(0.0)))
        if len(self.pairs):
            layers.append(dense("linear", (len(self.pairs),), Constant(1.0)))
        return embeddings + layers

    def ids(self, batch: Columns) -> dict[str, NDArray[np.int64]]:
        """Return the ids that a batch touches, by table."""
        ids = {name: batch.categorical[:, n] for n, name in enumerate(self.fields)}
        return ids | {table: batch.multi[name].values for name, table in self.bags.items()}

    def rate_scale(self, progress: float) -> float:
        """Return the share of the rate at a point of the training, 0 <= progress <= 1."""
        return 1.0 - (1.0 - self.settings.final_rate) * progress

    def predict(self, batch: Columns, pulled: Mapping[str, Any]) -> Array:
        """Return the probability of a click: float32[m]."""
        return sigmoid(self._forward(batch, pulled)[0])

    def gradients(self, batch: Columns, pulled: Mapping[str, Any]) -> tuple[float, Arrays]:
        """Return the mean log loss of a batch, and the gradient of its sum by table, shaped as pulled."""
        logits, latent, bottom, pairs, top = self._forward(batch, pulled)
        loss = (
            float(np.mean(np.logaddexp(0, np.where(batch.labels > 0, -logits, logits))))
            if len(batch)
            else 0.0
        )
        error = sigmoid(logits) - batch.labels
        found: Arrays = {}
        d_input = backward("top", pulled, top, error[:, None], found)
        d_pairs = d_input[:, d_input.shape[1] - len(self.pairs) :]
        if len(self.pairs):
            found["linear"] = error @ pairs
            d_pairs = d_pairs + error[:, None] * pulled["linear"]
        d_latent = self._interactions_backward(d_pairs, latent)
        if self.dense:
            width = self.settings.width
            backward(
                "bottom", pulled, bottom, (d_latent[:, 0] + d_input[:, :width]) * (bottom[-1] > 0), found
            )
        self._embeddings_backward(batch, error, d_latent[:, bool(self.dense) :], found)
        return loss, found

    def _forward(
        self, batch: Columns, pulled: Mapping[str, Any]
    ) -> tuple[Array, Array, list[Array], Array, list[Array]]:
        """Return logits [m], latent vectors [m, K, d], and what backward needs of the stacks and interactions."""
        embedded = [pulled[name] for name in self.fields]
        embedded += [mean_pool(pulled[table], batch.multi[name]) for name, table in self.bags.items()]
        rows = (
            np.stack(embedded, axis=1)
            if embedded
            else np.zeros((len(batch), 0, 1 + self.settings.width), np.float32)
        )
        latent, logits = rows[:, :, 1:], rows[:, :, 0].sum(1)
        bottom: list[Array] = []
        if self.dense:
            bottom = forward("bottom", pulled, batch.dense)
            bottom[-1] = np.maximum(bottom[-1], 0)
            latent = np.concatenate([bottom[-1][:, None], latent], axis=1)
        products = latent @ latent.transpose(0, 2, 1)
        pairs = products.reshape(len(batch), self.vectors**2).take(self.pairs, axis=1)
        top = forward("top", pulled, np.concatenate([*bottom[-1:], pairs], axis=1))
        if self.top:
            logits = logits + top[-1][:, 0]
        if len(self.pairs):
            logits = logits + pairs @ pulled["linear"]
        return logits, latent, bottom, pairs, top

    def _interactions_backward(self, d_pairs: Array, latent: Array) -> Array:
        """Each vector's gradient is the sum of the others, weighted by the gradients of their products: [m, K, d]."""
        m, vectors, _ = latent.shape
        weights = np.zeros((m, vectors, vectors), np.float32)
        weights[:, self.left, self.right] = d_pairs
        weights[:, self.right, self.left] = d_pairs
        d_latent: Array = weights @ latent
        return d_latent

    def _embeddings_backward(self, batch: Columns, error: Array, d_latent: Array, found: Arrays) -> None:
        d_rows = np.concatenate(
            [np.broadcast_to(error[:, None, None], (*d_latent.shape[:2], 1)), d_latent], axis=2
        )
        for n, name in enumerate(self.fields):
            found[name] = d_rows[:, n]
        for n, (name, table) in enumerate(self.bags.items(), len(self.fields)):
            sizes = np.diff(batch.multi[name].offsets)
            found[table] = np.repeat(
                d_rows[:, n] / np.maximum(sizes, 1)[:, None].astype(np.float32), sizes, axis=0
            )


def predict(model: Model, batch: Columns) -> Array:
    """Score rows with an exported model: what `rover predict` and `scoring.load(...).predict` call for `program = "dlrm"`."""
    network = Dlrm(model.schema, Settings.parse(model.settings))
    return network.predict(batch, look_up(network, model, batch))


def look_up(network: Dlrm, parameters: Parameters | Model, columns: Columns) -> dict[str, Any]:
    """Read what a batch needs, without the promise of a push: from a job's parameters, or from an exported model."""
    layers = [table.name for table in network.tables() if isinstance(table, Dense)]
    values = {name: parameters.read(name) for name in layers}
    return values | {name: parameters.read(name, ids) for name, ids in network.ids(columns).items()}


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    chances: Array = 0.5 + 0.5 * np.tanh(0.5 * logits)
    return chances


def mean_pool(values: Array, bag: Bag) -> Array:
    """Return the mean of each bag's rows: [m, w]; an empty bag is 0."""
    sizes = np.diff(bag.offsets)
    pooled = np.zeros((len(sizes), values.shape[1]), values.dtype)
    filled = np.flatnonzero(sizes)
    if len(filled):
        pooled[filled] = np.add.reduceat(values, bag.offsets[filled], axis=0) / sizes[filled, None].astype(
            np.float32
        )
    return pooled


def forward(stack: str, pulled: Mapping[str, Any], x: Array) -> list[Array]:
    """Run a stack of layers, ReLU between them; return the input of every layer, and last the output (without ReLU)."""
    steps = [x]
    n = 0
    while f"{stack}.{n}.weight" in pulled:
        inputs = np.maximum(steps[-1], 0) if n else x
        steps[-1] = inputs
        steps.append(inputs @ pulled[f"{stack}.{n}.weight"] + pulled[f"{stack}.{n}.bias"])
        n += 1
    return steps


def backward(
    stack: str, pulled: Mapping[str, Any], steps: list[Array], d_output: Array, found: Arrays
) -> Array:
    """Put the gradients of a stack's layers into `found`; return that of its input."""
    for n in reversed(range(len(steps) - 1)):
        found[f"{stack}.{n}.weight"] = steps[n].T @ d_output
        found[f"{stack}.{n}.bias"] = d_output.sum(0)
        d_output = d_output @ pulled[f"{stack}.{n}.weight"].T
        if n:
            d_output = d_output * (steps[n] > 0)
    return d_output
