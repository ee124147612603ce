"""Make a click log with Criteo's shape, skew and a planted signal, for those without data.

    python examples/clicks.py TRAIN.tsv [EVAL.tsv] --rows 100000 --eval-rows 20000 --seed 1

Rows are raw Criteo: label, 13 counts (some empty, some negative), 26 categorical fields of eight hex digits (some empty),
tabs, no header. Ids are Zipf-distributed over vocabularies of 10 to 10^6. Labels are drawn from a known logit (weights of
ids, products of hidden vectors, counts), so the best AUC that any model can reach is known. The seed fixes the world; both
files are drawn from the same one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.order import derive_key, splitmix64

DENSE, FIELDS = 13, 26
VOCABULARIES = np.geomspace(10, 1_000_000, FIELDS).astype(np.int64)
SKEW = 1.05
FACTORS, PAIRED_FIELDS = 4, 8
TAILS = np.linspace(0.8, 2.2, DENSE)  # mean of log(1 + count)
EMPTY = np.linspace(0, 0.4, DENSE)  # share of empty counts
PIECE_ROWS = 8192

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Clicks:
    """Rows before they are text: labels and true logits [n], counts [n, 13] and where they are empty, ranks of ids [n, 26]
    (0 is the most frequent id of a field, -1 the empty one)."""

    labels: Ints
    logits: Floats
    counts: Ints
    empty: Flags
    ranks: Ints


def draw(rows: int, seed: int, stream: tuple[int, ...] = (0,)) -> Clicks:
    """Draw rows of the world `seed`; `stream` tells draws from one world apart."""
    rng = np.random.default_rng([seed, *stream])
    ranks = _zipf(rng.random((rows, FIELDS)))
    ranks[rng.random((rows, FIELDS)) < np.linspace(0, 0.4, FIELDS)] = -1
    logs = rng.exponential(size=(rows, DENSE)) * TAILS
    counts = np.floor(np.expm1(logs)).astype(np.int64)
    counts[:, 1] -= 1
    empty = rng.random((rows, DENSE)) < EMPTY
    logits = _logits(seed, ranks, np.where(empty, 0.0, logs))
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    return Clicks(labels, logits, counts, empty, ranks)


def encode(clicks: Clicks, seed: int) -> bytes:
    """Write rows as raw Criteo text, all at once: fields of fixed width, from which the unused bytes are cut."""
    rows = len(clicks.labels)
    tab, end = (np.full((rows, 1), ord(mark), np.uint8) for mark in "\t\n")
    columns = [(clicks.labels + ord("0")).astype(np.uint8)[:, None]]
    for n in range(DENSE):
        columns += [tab, _decimal(clicks.counts[:, n], clicks.empty[:, n])]
    for n in range(FIELDS):
        columns += [tab, _hexadecimal(clicks.ranks[:, n], derive_key(seed, n))]
    text = np.concatenate([*columns, end], axis=1).ravel()
    return text[text > 0].tobytes()


def write(path: str | Path, rows: int, seed: int, stream: int = 0) -> float:
    """Write a file of rows, bounded in memory; return the best AUC that a model can reach on it (1.0 needs luck)."""
    labels, logits = [], []
    with Path(path).open("wb") as file:
        for first in range(0, rows, PIECE_ROWS):
            clicks = draw(min(PIECE_ROWS, rows - first), seed, (stream, first))
            file.write(encode(clicks, seed))
            labels.append(clicks.labels)
            logits.append(clicks.logits)
    return _auc(np.concatenate(labels), np.concatenate(logits))


def _zipf(uniform: Floats) -> Ints:
    """Turn uniforms [n, 26] into ranks by the inverse of the continuous Zipf law over each field's vocabulary."""
    power = 1 - SKEW
    reach = (VOCABULARIES + 1.0) ** power - 1
    return np.minimum((1 + uniform * reach) ** (1 / power) - 1, VOCABULARIES - 1).astype(np.int64)


def _logits(seed: int, ranks: Ints, logs: Floats) -> Floats:
    """Return the true logit of every row; about a quarter of the rows are clicks."""
    fields = np.arange(FIELDS, dtype=np.uint64) << np.uint64(40)
    ids = splitmix64((fields + (ranks + 1).astype(np.uint64)) ^ np.uint64(derive_key(seed, -1)))
    known = ranks >= 0
    logits = -1.6 + (_weights(ids, 0) * known * np.linspace(0.5, 0.15, FIELDS)).sum(1)
    for factor in range(1, FACTORS + 1):
        vectors = _weights(ids[:, : 2 * PAIRED_FIELDS], factor) * known[:, : 2 * PAIRED_FIELDS]
        logits += 0.15 * (vectors[:, ::2] * vectors[:, 1::2]).sum(1)
    slopes = np.random.default_rng([seed, 1, 0]).normal(0, 0.2, DENSE)
    found: Floats = logits + (logs - TAILS * (1 - EMPTY)) @ slopes
    return found


def _weights(ids: NDArray[np.uint64], stream: int) -> Floats:
    """Hash ids to weights of mean 0 and deviation 1 (uniform)."""
    words = splitmix64(ids + np.uint64(stream)).view(np.int64)
    weights: Floats = words * (np.sqrt(3.0) / 2**63)
    return weights


def _decimal(values: Ints, empty: Flags) -> Bytes:
    """Digits [n, width] of signed integers; places in front and empty fields are 0 bytes."""
    width = len(str(int(np.abs(values).max(initial=0))))
    powers = (10 ** np.arange(width - 1, -1, -1)).astype(np.uint32)
    sizes = np.abs(values).astype(np.uint32)[:, None]
    digits = np.zeros((len(values), 1 + width), np.uint8)
    digits[:, 0] = np.where(values < 0, ord("-"), 0)
    digits[:, 1:] = np.where((sizes >= powers) | (powers == 1), sizes // powers % 10 + ord("0"), 0)
    digits[empty] = 0
    return digits


def _hexadecimal(ranks: Ints, key: int) -> Bytes:
    """Eight hex digits [n, 8] of a hash of each rank; 0 bytes for the empty id."""
    words = splitmix64(ranks.astype(np.uint64) ^ np.uint64(key))
    halves = words.view(np.uint8).reshape(-1, 8)[:, :4, None] >> np.array([4, 0], np.uint8)
    digits: Bytes = np.frombuffer(b"0123456789abcdef", np.uint8)[halves.reshape(-1, 8) & 15]
    digits[ranks < 0] = 0
    return digits


def _auc(labels: Ints, logits: Floats) -> float:
    ranks = np.argsort(np.argsort(logits, kind="stable"), kind="stable") + 1.0
    clicks = int(labels.sum())
    above = ranks[labels > 0].sum() - clicks * (clicks + 1) / 2
    return float(above / (clicks * (len(labels) - clicks))) if 0 < clicks < len(labels) else float("nan")


def main(arguments: list[str] | None = None) -> None:
    """Write the files and print, as one JSON line, what they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", help="file to write")
    parser.add_argument("evaluate", nargs="?", help="evaluation file to write")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--eval-rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    made: dict[str, Any] = {"seed": options.seed}
    for stream, (name, path, rows) in enumerate(
        [("train", options.train, options.rows), ("evaluate", options.evaluate, options.eval_rows)]
    ):
        if path:
            made[name] = {"path": path, "rows": rows, "auc_best": write(path, rows, options.seed, stream)}
    print(json.dumps(made))


if __name__ == "__main__":
    main()
