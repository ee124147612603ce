"""What workers cost that wait for the end of an epoch: `python -m bench.leases --waiting`.

Half of them hold a batch each, half get nothing. The decider alone (CPU a request that gets nothing), then a master over a broker
(CPU a waiting worker a second).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

from bench import rig
from bench.leases_client import BATCH, PROCESSES, Client, result_of
from rover_bus.events.facts import JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.inputs import Observed, Requested, Ticked, TookOver
from rover_bus.events.job import Dataset, DataSpec, JobSpec, LeaseSpec
from rover_bus.events.requests import JoinRequest, LeaseRequest, RegisterRequest
from rover_bus.master.decider import MasterDecider


def waiting_alone(workers: int, requests: int = 20_000) -> float:
    """CPU microseconds of the decider a request that gets nothing; a tick a quarter of a second of requests, as a master has it."""
    decider, now, member = MasterDecider("j"), 0.0, Member("worker", 0, 1)
    spec = JobSpec(
        name="j",
        program=["true"],
        data=DataSpec(train="none", batch_size=BATCH),
        leases=LeaseSpec(max_batches=1),
    )
    decider.decide(TookOver("m", 1), now)
    decider.decide(Observed(JobSubmitted(job="j", spec=spec, uid="0123456789ab"), "F:1"), now)
    decider.decide(
        Observed(PlanProposed(job="j", plan=1, workers=workers, servers=0, hosts=["h"]), "F:2"), now
    )
    for index in range(workers):
        member = Member("worker", index, 1)
        decider.decide(Requested(JoinRequest(member=member, nonce=f"n{index}")), now)
    who: dict[str, Any] = {"timeline": decider.timeline}
    data = Dataset(records=workers // 2 * BATCH, batch_size=BATCH)
    decider.decide(Requested(RegisterRequest(member=member, dataset=data, **who)), now)
    rate = 0.1
    for index in range(workers // 2):
        request = LeaseRequest(member=Member("worker", index, 1), request=1, rate=rate, **who)
        decider.decide(Requested(request), now)
    idle = [
        Requested(LeaseRequest(member=Member("worker", index, 1), request=1, rate=rate, **who))
        for index in range(workers // 2, workers)
    ]
    a_tick = max(len(idle) // 4, 1)  # each asks once a second
    began, asked = time.process_time(), 0
    while asked < requests:
        for input in idle[asked % len(idle) :][:a_tick]:
            records, *_ = decider.decide(input, now)
            assert not records, records
            asked += 1
        now += 0.25 / 1e6  # the clock stands nearly still: no member is late or silent
        decider.decide(Ticked(), now)
    return round(1e6 * (time.process_time() - began) / asked, 1)


async def waiters(url: str, job: str, first: int, workers: int, seconds: float) -> dict[str, Any]:
    bus = await rig.connect(url, os.environ["BENCH_SECRET"], f"waiters-{first}")
    data = Dataset(records=workers * PROCESSES // 2 * BATCH, batch_size=BATCH)
    many = [Client(bus, job, first + index) for index in range(workers)]
    await asyncio.gather(*(client.join(data) for client in many))
    settled = time.monotonic() + seconds / 4
    await asyncio.gather(*(client.wait(settled) for client in many))
    master = int(os.environ["BENCH_MASTER"])
    before, began = rig.cpu_seconds(master), time.monotonic()
    empty = await asyncio.gather(*(client.wait(began + seconds) for client in many))
    await bus.close()
    spent, took = rig.cpu_seconds(master) - before, time.monotonic() - began
    return {"empty": sum(empty), "waiting": sum(each > 0 for each in empty), "cpu": spent / took}


def measure_waiting(workers: int, seconds: float) -> dict[str, Any]:
    """A real master with so many workers, half of which wait."""
    job = f"waiting-{workers}"
    with rig.broker() as broker:

        async def prepare() -> None:
            bus = await rig.connect(broker.url, broker.secret, "bench")
            await rig.open_job(bus, job, workers=workers)
            await bus.close()

        rig.run(prepare())
        master = rig.start_master(broker.url, broker.secret, job, 0)
        share = workers // PROCESSES
        environment = {**os.environ, "BENCH_SECRET": broker.secret, "BENCH_MASTER": str(master.pid)}
        command = [sys.executable, "-m", "bench.leases", "--seconds", str(seconds), "--workers", str(share)]
        try:
            running = [
                subprocess.Popen(
                    [*command, "--client", broker.url, job, str(number * share)],
                    env=environment,
                    stdout=subprocess.PIPE,
                )
                for number in range(PROCESSES)
            ]
            outputs = [result_of(process) for process in running]
        finally:
            master.terminate()
            master.wait()
    cpu = sum(output["cpu"] for output in outputs) / len(outputs)
    return {
        "workers": workers,
        "waiting": sum(output["waiting"] for output in outputs),
        "requests_per_second": round(sum(output["empty"] for output in outputs) / seconds, 1),
        "master_cpu_percent": round(100 * cpu, 1),
        "decider_us_a_request": waiting_alone(workers),
    }


def show_waiting(seconds: float, as_json: bool) -> None:
    rows = []
    print("workers  waiting  requests/s  master CPU %  decider us/request")
    for workers in (20, 1000):
        row = measure_waiting(workers, seconds)
        print(
            "{workers:7} {waiting:8} {requests_per_second:11} {master_cpu_percent:13} {decider_us_a_request:19}".format(
                **row
            )
        )
        rows.append(row)
    if as_json:
        print(json.dumps({"waiting": rows}))
