"""What a training script imports: `with rover.join() as job: for batch in job.batches(click_log): ...`

job.py            the synchronous face: join, batches, parameters, report, elected, result
session.py        the asynchronous API below it, on any Bus (simulations drive this one)
worker.py         the protocol as a state machine without I/O; lease.py, spans.py and pace.py are its parts
connected.py      a session in a background thread; standalone.py the same calls without a bus
reader.py         batches parsed ahead in one thread
parameters.py     the parameter store plus what the protocol needs of every push; witness.py the judge of exactness
group.py          the workers that take each step together, of a synchronous job
figures.py        where the time goes; failure.py what an exception is called; environment.py which member this process is
job_file.py       JOB.toml to a JobSpec; scoring.py an exported model outside its job
data/             readers of click logs, of files and of partitions that grow

Importing this imports neither nats nor scipy, psutil, rich, click.
"""

from rover_bus.client.connected import JobOver
from rover_bus.client.data import Batch, ClickLog, PartitionLog, Schema, open_log
from rover_bus.client.group import TrainingGroup
from rover_bus.client.job import Job, NoJobFile, join
from rover_bus.client.parameters import TrainingParameters
from rover_bus.client.reader import Source, Stream
from rover_bus.client.session import Session
from rover_bus.client.witness import read_witness
from rover_bus.client.worker import Worker
from rover_bus.events.job import Dataset
from rover_bus.ps.spec import (
    Adagrad,
    Adam,
    Add,
    Constant,
    Dense,
    Growing,
    Hashed,
    Normal,
    RowAdagrad,
    Sgd,
    Uniform,
    Zeros,
)
from rover_bus.ps.store import BatchKey

__all__ = [
    "Adagrad",
    "Adam",
    "Add",
    "Batch",
    "BatchKey",
    "ClickLog",
    "Constant",
    "Dataset",
    "Dense",
    "Growing",
    "Hashed",
    "Job",
    "JobOver",
    "NoJobFile",
    "Normal",
    "PartitionLog",
    "RowAdagrad",
    "Schema",
    "Session",
    "Sgd",
    "Source",
    "Stream",
    "TrainingGroup",
    "TrainingParameters",
    "Uniform",
    "Worker",
    "Zeros",
    "join",
    "open_log",
    "read_witness",
]
