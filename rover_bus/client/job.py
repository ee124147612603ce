"""The synchronous face of this library: what a training script talks to.

    import rover_bus.client as rover

    with rover.join() as job:
        job.parameters.declare(*tables)
        for batch in job.batches(click_log):
            pulled = job.parameters.pull(ids(batch))
            job.parameters.push((batch.epoch, batch.number), gradients(batch, pulled))
            job.report(loss=...)
        if job.elected("evaluate"):
            job.result("evaluate", auc=..., logloss=...)

Fed by `connected` (a member of a job on a bus) or `standalone` (one process, no bus): the loop is the same. A batch counts as done
when the next is asked for and every server holds its push. It is apart from both as the only page that a model developer reads.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from rover_bus.client.connected import Connected, JobOver
from rover_bus.client.environment import Environment
from rover_bus.client.failure import describe_failure
from rover_bus.client.figures import Figures
from rover_bus.client.group import ALONE, TrainingGroup
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.loaded import tell_loaded
from rover_bus.client.parameters import HandedOut, TrainingParameters
from rover_bus.client.reader import Read, Reader, Source, Stream
from rover_bus.client.standalone import Standalone, read_spec
from rover_bus.client.storage import pause_of
from rover_bus.events.errors import InputError, RoverError, TemporaryError
from rover_bus.events.job import Dataset, DataSpec, JobSpec, is_synchronous
from rover_bus.events.own_use import read_own_use

SAMPLE_EVERY_S = 2.0


class NoJobFile(InputError):
    """A program that runs alone asked for what only a job file says."""


def join(job: str | Path = "", **variables: str) -> Job:
    """Join the job that this process was started for, or run alone. Use it with `with`.

    Reads the ROVER_* environment; `variables` (`ROVER_JOB="movielens"`, ...) override it. `job` is the job file of a program that
    runs alone, by default ROVER_JOB_FILE; a member of a job has that job's. Raises InputError for what cannot be,
    BrokerUnreachable, AccessDenied, Refused when the job does not want this process; SystemExit with status 0 in a member that a
    platform started and that is wanted no more before it has joined: its end is in order.
    """
    environment = Environment.read({**os.environ, **variables})
    if not environment.job:
        return Job(Standalone(_spec_alone(environment, job), environment.summary_file))
    connected = Connected(environment, secrets.token_hex(8), os.getpid())
    try:
        connected.start()
    except BaseException as error:
        connected.close()
        if isinstance(error, JobOver) and not environment.external:
            print(error, file=sys.stderr)
            raise SystemExit(0) from None
        raise
    if environment.loaded_file:
        tell_loaded(Path(environment.loaded_file))
    if environment.spares_at and environment.member.incarnation:
        connected.tell_loaded()
    return Job(connected)


def _spec_alone(environment: Environment, job_file: str | Path) -> JobSpec | None:
    """The job of a program that no job started: as `rover run --plain` hands it over, else a job file, else none."""
    if environment.spec_file:
        return read_spec(Path(environment.spec_file))
    named = job_file or environment.job_file
    if not named:
        return None
    from rover_bus.client.job_file import read_job  # what reads TOML is not loaded by members of a job

    return read_job(named)


class Job:
    """A process's part in a job, from joining to leaving. One training thread may use it."""

    def __init__(self, place: Connected | Standalone) -> None:
        self.figures = Figures()
        self._place = place
        self._config: JobSpec | None = place.spec
        self._parameters: TrainingParameters | None = None
        self._reader: Reader | None = None
        self._hand: HandedOut | None = None
        self._draining = False
        self._group = ALONE
        self._sampled = self.figures.copy()
        self._sampled_at = time.monotonic()
        self._used = read_own_use()
        # Two samples a window of the Brain, so that one which began before a change can be left out.
        window_s = self._config.plan.window_s if self._config is not None else 2 * SAMPLE_EVERY_S
        self._sample_every_s = min(SAMPLE_EVERY_S, window_s / 2)
        self._former_handler: Any = None

    # -- what the job is ---------------------------------------------------------------------------------------------------

    @property
    def config(self) -> JobSpec:
        """The job as submitted. Raises NoJobFile in a program that runs alone without one; uncaught, that ends it with status 2."""
        if self._config is None:
            raise NoJobFile(
                'this program runs alone and has no job file: name one, `rover.join(job="job.toml")` or ROVER_JOB_FILE=job.toml'
            )
        return self._config

    @property
    def model(self) -> dict[str, Any]:
        """The `[model]` table of the job file; empty without one."""
        return self._config.model if self._config else {}

    @property
    def data(self) -> DataSpec:
        """The `[data]` table of the job file."""
        return self.config.data

    @property
    def drained(self) -> bool:
        """True once this worker was asked to leave: batches end early, elections are lost."""
        return self._draining or self._place.draining

    @property
    def group(self) -> TrainingGroup:
        """The workers that take the step of the batch in hand together, of a synchronous job: build your barrier between these.

        It changes from one batch to the next when workers come or go, by its `number`; then build another barrier. A process that
        runs alone is a group of one.
        """
        return self._group

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure that this worker waits for the others of its group: `with job.waiting(): barrier.wait()`.

        By what is left, its own part of a step, the Brain finds the one worker that all wait for.
        """
        began = time.monotonic()
        try:
            yield
        finally:
            self.figures.barrier_s += time.monotonic() - began

    @property
    def blocked_s(self) -> float:
        """Seconds the training thread stood still in this library outside server calls."""
        return self.figures.blocked_s

    @property
    def parameters(self) -> TrainingParameters:
        """The job's parameters: on its servers, or in this process when standalone. Waits until the servers are there."""
        if self._parameters is None:
            store = self._place.parameters()
            if store is None:
                raise InputError("this job has no parameter servers: set servers in its job file")
            self._parameters = TrainingParameters(store, self.figures, time.monotonic)
        return self._parameters

    # -- training -----------------------------------------------------------------------------------------------------------

    def batches(
        self,
        source: Source | Stream,
        *,
        batch_size: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Yield the batches leased to this worker until the job's epochs are over, or it has to leave.

        The data set is registered first: every worker of a job must register the same (S6). Batch size, epochs and seed are the
        job file's unless given. Asking for the next batch says that the former one is done. Raises Refused, with the difference.
        Of a Stream the batches come as its partitions grow, until all are sealed; it has no total, hence no witness.
        """
        spec = self._config.data if self._config else None
        stream = source if isinstance(source, Stream) else None
        known = self._place.known
        if stream is not None and known is not None and known.streaming:
            stream.adopt(known)
        dataset = source.dataset(
            batch_size if batch_size is not None else spec.batch_size if spec else 128,
            epochs if epochs is not None else spec.epochs if spec else 1,
            seed if seed is not None else spec.seed if spec else 0,
        )
        self._place.register(dataset, str(getattr(source, "path", "")), stream)
        if spec is not None and spec.witness:
            self._begin_witness(dataset)
        pause = pause_of(spec) if spec else None
        reader = self._reader = Reader(self._place, source, dataset, pause)
        try:
            while (handed := self._next(reader)) is not None:
                self._hand = handed
                yield handed.batch
                self._close_hand()
        finally:
            reader.stop()
        if (error := self._place.reason_to_stop()) is not None:
            raise error

    def _begin_witness(self, dataset: Dataset) -> None:
        if self.drained or (self._parameters is None and self._place.parameters() is None):
            return
        self.parameters.witness(dataset)

    def _next(self, reader: Reader) -> HandedOut | None:
        """Return the next batch worth training, None at the end; the time it takes is measured."""
        self._collect()
        self._sample()
        while not self.drained:
            read = reader.poll() or self._wait_for(reader)
            if read is None:
                self._draining |= self._place.retiring  # its last step is done
                break
            if read.assigned is None:
                assert read.error is not None
                raise read.error
            if not self._place.holds(read.assigned):
                continue
            handed = self._hand_out(read.assigned, read)
            if handed is not None:
                return handed
        self._flush()
        return None

    def _wait_for(self, reader: Reader) -> Read | None:
        """Nothing is ready. What is on its way to the servers is waited for first: the end of an epoch may hang on it."""
        self._flush()
        began, idle_s = time.monotonic(), reader.idle_s
        read = reader.get()
        waited = time.monotonic() - began
        without_lease = min(reader.idle_s - idle_s, waited)
        self.figures.wait_s += without_lease
        self.figures.read_s += waited - without_lease
        return read

    def _hand_out(self, assigned: Assigned, read: Read) -> HandedOut | None:
        """Return a batch for the program; None for one without a usable row, which is done by being named.

        Of a synchronous job each one is a step that others wait for.
        """
        if read.error is not None:
            self._hand = HandedOut(assigned, None, Work(), 0)
            raise read.error
        batch = read.batch
        skipped = tuple(getattr(batch, "skipped", ()))
        work = Work(
            skipped=skipped,
            values_missing=int(getattr(batch, "values_missing", 0)),
            file=str(getattr(batch, "file", "")) if skipped else "",
        )
        samples = len(batch)
        if not samples and work.skipped and assigned.group is None:
            self._place.finish(assigned, work, None)
            return None
        handed = HandedOut(assigned, batch, work, samples)
        self._group = self._place.group_of(assigned)
        if self._parameters is not None:
            self._parameters.hand_out(handed)
        return handed

    def _close_hand(self) -> None:
        """The program asks for the next batch: the one in its hand is done once its push is."""
        handed, self._hand = self._hand, None
        assert handed is not None
        self.figures.samples += handed.samples
        self.figures.batches += 1
        if self._parameters is None or not self._parameters.awaits(handed):
            self._place.finish(handed.assigned, handed.work, None)

    def _collect(self) -> None:
        """Report the batches whose pushes were acknowledged by every server."""
        if self._parameters is None:
            return
        for handed, ack in self._parameters.collect():
            self.figures.acks += 1
            self.figures.staleness_sum += ack.staleness_batches
            work = handed.work._replace(samples_retrained=handed.samples) if ack.repeated else handed.work
            self._place.finish(handed.assigned, work, ack.incarnations)

    def _flush(self) -> None:
        if self._parameters is not None:
            self._parameters.flush()
            self._collect()

    # -- telling --------------------------------------------------------------------------------------------------------------

    def report(self, **metrics: float) -> None:
        """Note metrics of the batch in hand. `loss` is averaged into this worker's samples; the others keep their latest value."""
        figures = self.figures
        for name, value in metrics.items():
            if name == "loss":
                figures.loss_sum += value
                figures.losses += 1
            else:
                figures.metrics[name] = float(value)

    def _sample(self) -> None:
        now = time.monotonic()
        window_s = now - self._sampled_at
        if window_s < self._sample_every_s:
            return
        figures = self.figures.since(self._sampled)
        self._sampled, self._sampled_at = self.figures.copy(), now
        before_s, self._used = self._used.processor_s, read_own_use()
        cores = round((self._used.processor_s - before_s) / window_s, 4)
        memory = self._used.memory_bytes
        self._place.publish(lambda job, member: figures.profile(job, member, window_s, cores, memory))

    def elected(self, task: str) -> bool:
        """Return whether this worker shall do `task` for all. Others wait until it is done; one steps in if the elected is lost."""
        return not self.drained and self._place.elect(task)

    def result(self, task: str, **values: Any) -> None:
        """Hand in the result of a task that this worker was elected for: numbers and texts by name."""
        self._place.conclude(task, {name: _plain(value) for name, value in values.items()})

    # -- ends -----------------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Finish the batch in hand, of a synchronous job the steps that were granted, then leave: what SIGTERM asks for."""
        self._draining = self._config is None or not is_synchronous(self._config)  # else `_place` says when
        self._place.drain()

    def __enter__(self) -> Job:
        if threading.current_thread() is threading.main_thread():
            self._former_handler = signal.signal(signal.SIGTERM, self._on_terminate)
        return self

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, self._former_handler or signal.SIG_DFL)  # a second one does not wait
        self.drain()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leave the job, reporting an exception of the program; only JobOver ends here, it has nothing to tell the user."""
        try:
            if error is not None and _is_failure(error):
                self._fail(error)
            else:
                self._leave("drained" if self.drained or error is not None else "done")
        finally:
            self._close()
        if isinstance(error, NoJobFile):
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        return isinstance(error, JobOver)

    def _leave(self, reason: str) -> None:
        with suppress(RoverError):
            self._flush()
        self._place.leave(reason)

    def _fail(self, error: BaseException) -> None:
        assigned: Assigned | None = self._hand.assigned if self._hand else None
        with suppress(RoverError):
            self._flush()
        self._place.fail(lambda worker: describe_failure(error, worker, assigned))

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.stop()
        if self._parameters is not None:
            self._parameters.close()
        self._place.close()
        if self._former_handler is not None:
            signal.signal(signal.SIGTERM, self._former_handler)


def _is_failure(error: BaseException) -> bool:
    """Whether an exception is the program's fault: not a wish to end, and not what the job or its servers told us."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return isinstance(error, Exception) and not isinstance(error, TemporaryError | JobOver)


def _plain(value: Any) -> Any:
    """Numbers of numpy become plain ones: a result is read by programs that have no numpy."""
    return value.item() if hasattr(value, "item") else value
