"""The jobs that are played: a job file, and two programs of their own. Written into a folder by stage.py; nothing here runs."""

from __future__ import annotations

import sys

JOB = "living"
PROGRAM = "grows.py"
LIBRARY = "library.py"
OWN_PROGRAM = f'["{sys.executable}", "{PROGRAM}"]'
GROWING = """
import numpy as np
import rover_bus.client as rover
from rover_bus.client.data import Schema, open_log
from rover_bus.ps.spec import Adagrad, Growing
from rover_bus.ps.store import BatchKey
IDS = {ids}
with rover.join() as job:
    log = open_log(job.data.train, Schema.parse(job.data.schema))
    batches = log.dataset(job.data.batch_size).batches
    parameters = job.parameters
    parameters.declare(Growing(name="grows", width=32, optimizer=Adagrad(0.1)))
    for batch in job.batches(log):
        first = (batch.epoch * batches + batch.number) * IDS
        ids = np.arange(first, first + IDS)
        key = BatchKey(batch.epoch, batch.number)
        parameters.push(key, {{"grows": np.ones((IDS, 32), np.float32)}}, pulled=parameters.pull({{"grows": ids}}))
"""

SLOW_TO_LOAD = """
try:
    import torch
except ImportError:
    import time
    time.sleep(2)
"""
LOADS_SLOWLY = f"import {LIBRARY.removesuffix('.py')}" + GROWING

LATE_SERVERS = """
import os, time
if os.environ.get("ROVER_ROLE") == "ps" and os.environ.get("ROVER_INCARNATION") == "1":
    time.sleep({late_s}.get(os.environ["ROVER_INDEX"], 0.0))
"""
LATE_WORKER = """
import os, time
if os.environ.get("ROVER_ROLE") == "worker" and os.environ["ROVER_INDEX"] == "2" and os.environ["ROVER_INCARNATION"] == "1":
    time.sleep({late_s})
"""
SEES_SITE = 'environment = { PYTHONPATH = "." }'  # members run in the folder of their job file

BUSY_SERVER = """
import os
import time
import numpy as np
import rover_bus.client as rover
from rover_bus.client.data import Schema, open_log
from rover_bus.ps.spec import Adagrad, Hashed
from rover_bus.ps.store import BatchKey
IDS = {ids}
with rover.join() as job:
    log = open_log(job.data.train, Schema.parse(job.data.schema))
    parameters = job.parameters
    parameters.declare(Hashed(name="table", rows=1 << 18, width=64, optimizer=Adagrad(0.1)))
    chance = np.random.default_rng(os.getpid())
    for batch in job.batches(log):
        ids = chance.integers(0, 1 << 30, IDS)
        pulled = parameters.pull({{"table": ids}})
        time.sleep({compute_s})  # an accelerator computes: no processor of this machine does
        parameters.push(BatchKey(batch.epoch, batch.number), {{"table": np.ones((IDS, 64), np.float32)}}, pulled=pulled)
"""


def job_file(
    workers: str,
    more: str = "",
    program: str = '"dlrm"',
    servers: str = "count = 1",
    plan: str = "",
    latency_ms: int = 120,
    heartbeat_ms: int = 500,
) -> str:
    """A job that waits for its storage, unless `latency_ms` is small: on two cores only such a job gains from more workers.

    A member that is silent for three heartbeats counts as dead: one that a play stalls needs longer ones on a busy machine.
    """
    return f"""
name = "{JOB}"
program = {program}
{more}
[data]
train = "train.tsv"
batch_size = 128
epochs = 4000
read_latency = "{latency_ms}ms"
witness = false
[data.schema]
format = "criteo"
[model]
width = 8
[workers]
{workers}
[servers]
{servers}
[leases]
target = "2s"
heartbeat = "{heartbeat_ms}ms"
[plan]
window = "2s"
cooldown = "10s"
{plan}
"""
