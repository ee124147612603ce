"""Train a DLRM on any click log: the program that `program = "dlrm"` of a job file runs, and the one to copy for your own.

The job file says what the files are (`[data]`, `[data.schema]`) and how the model looks (`[model]`). Without a bus the same
program trains alone: `rover run --plain JOB.toml`.
"""

from __future__ import annotations

from dlrm import Dlrm, Settings
from scoring import evaluate

import rover_bus.client as rover
from rover_bus.client.data import ClickLog, Schema, open_log
from rover_bus.client.scoring import write_scores
from rover_bus.ps.store import BatchKey


def main() -> None:
    """Train what the job leases to this worker, then evaluate if it is this one's turn."""
    with rover.join() as job:
        log = open_log(job.data.train, Schema.parse(job.data.schema))
        model = Dlrm(log.schema, Settings.parse(job.model))
        parameters = job.parameters
        parameters.declare(*model.tables())

        batches = log.dataset(job.data.batch_size).batches
        for batch in job.batches(log):
            pulled = parameters.pull(model.ids(batch))
            loss, gradients = model.gradients(batch, pulled)
            progress = (batch.epoch + batch.number / batches) / job.data.epochs if batches else 0.0
            key = BatchKey(batch.epoch, batch.number)
            parameters.push(key, gradients, rate_scale=model.rate_scale(progress), pulled=pulled)
            job.report(loss=loss)

        if job.data.evaluate and job.elected("evaluate"):
            result = evaluate(model, parameters, ClickLog(job.data.evaluate, log.schema, scaling=log.scaling))
            if job.config.predictions:
                write_scores(job.config.predictions, result.scores)
            job.result("evaluate", auc=result.auc, logloss=result.logloss)


if __name__ == "__main__":
    main()
