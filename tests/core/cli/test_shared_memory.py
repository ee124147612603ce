"""What `rover submit` knows of the shared memory that a job's checkpoints need, and what its hosts have."""

from __future__ import annotations

from typing import Any

import pytest

from rover_bus.cli.shared_memory import require_shared_memory, state_bytes
from rover_bus.events.errors import NotEnoughMemory
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec

MIB = 1 << 20


def job(witness: bool = True, **spec: Any) -> JobSpec:
    data = DataSpec(train="t", batch_size=10, epochs=2, witness=witness)
    return JobSpec(name="ads", program=["train"], data=data, checkpoint=CheckpointSpec(**spec))


def test_the_witness_is_as_large_as_the_data_set_and_a_stored_model_is_there_from_the_start() -> None:
    assert state_bytes(job(), 1_000_000) == 8_000_000
    assert state_bytes(job(witness=False), 1_000_000) == 0
    assert state_bytes(job(), 1000, stored_bytes=3 * MIB, stored_samples=MIB // 4) == 8000 + MIB
    assert state_bytes(job(witness=False), 1000, stored_bytes=100, stored_samples=MIB) == 0


def test_a_job_whose_cuts_can_never_be_staged_is_refused_with_the_size_that_would_do() -> None:
    with pytest.raises(
        NotEnoughMemory, match=r"need 99 MiB of shared memory at the least, h1 has 64 MiB"
    ) as error:
        require_shared_memory(job(), 32 * MIB, {"h1": 64 * MIB})
    assert error.value.wanted_bytes > 96 * MIB
    assert error.value.exit_code == 6


@pytest.mark.parametrize(
    ("spec", "hosts"),
    [
        (job(), {"h1": 64 * MIB, "h2": 64 * MIB}),
        (job(), {"h1": 64 * MIB, "h2": 0}),
        (job(), {}),
        (job().replace(checkpoint=None), {"h1": MIB}),
    ],
    ids=["room on two hosts", "one host does not say", "no host is there", "no cuts are taken"],
)
def test_a_job_that_may_have_room_is_let_through(spec: JobSpec, hosts: dict[str, int]) -> None:
    require_shared_memory(spec, 32 * MIB, hosts)
