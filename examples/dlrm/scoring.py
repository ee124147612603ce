"""How good a model is: AUC and log loss on an evaluation file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dlrm import Dlrm, look_up
from numpy.typing import NDArray

from rover_bus.client.data import ClickLog
from rover_bus.ps.store import Parameters


@dataclass(frozen=True)
class Evaluation:
    """`scores` float32[records], in file order; NaN where a row could not be used (those count in neither figure)."""

    auc: float
    logloss: float
    scores: NDArray[np.float32]


def evaluate(model: Dlrm, parameters: Parameters, log: ClickLog) -> Evaluation:
    """Score a whole file. The file must be read with the scaling of the training file."""
    scores = np.full(log.records, np.nan, np.float32)
    labels = np.zeros(log.records, np.float32)
    for columns, _places, _skipped in log.scan():
        scores[columns.rows] = model.predict(columns, look_up(model, parameters, columns))
        labels[columns.rows] = columns.labels
    usable = ~np.isnan(scores)
    return Evaluation(auc(labels[usable], scores[usable]), log_loss(labels[usable], scores[usable]), scores)


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve: the chance that a click scores above a non-click, a tie counting half.

    NaN when the labels are all alike.
    """
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    clicks = int(np.count_nonzero(labels))
    others = len(labels) - clicks
    if not clicks or not others:
        return float("nan")
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * others))


def log_loss(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Return the mean negative log likelihood, scores kept 1e-7 away from 0 and 1; NaN without rows."""
    if not len(labels):
        return float("nan")
    likely = np.where(labels > 0, scores, 1 - scores).astype(np.float64)
    return float(-np.log(np.clip(likely, 1e-7, 1 - 1e-7)).mean())
