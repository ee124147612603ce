"""DLRover's own master under the same load as ours: what `python -m bench.leases --peer PYTHON` runs beside it.

    PYTHON bench/leases_peer.py ADDRESS SECONDS CLIENTS

PYTHON is an interpreter with DLRover (`pip install dlrover==0.6.1 grpcio kubernetes protobuf==4.25.3`, in an environment of its
own); nothing of ours is imported here. Each client asks for one shard and reports it done, over gRPC with DLRover's own client,
in a thread of its own; prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import threading
import time

BATCH, DATASET, SHARDS = (
    100,
    "bench",
    200_000,
)  # more shards than it hands out in any run; it holds them all in memory


def main() -> None:
    from dlrover.python.elastic_agent.master_client import GrpcMasterClient  # type: ignore[import-not-found]

    address, seconds, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    first = GrpcMasterClient(address, 0, "worker")
    first.report_dataset_shard_params(
        batch_size=BATCH,
        num_epochs=1,
        dataset_size=BATCH * SHARDS,
        num_minibatches_per_shard=1,
        dataset_name=DATASET,
        task_type=1,
        storage_type="table",
    )
    latencies: list[float] = []
    done = [0] * count
    begin = threading.Barrier(count + 1)

    def work(index: int) -> None:
        client = GrpcMasterClient(address, index, "worker")
        begin.wait()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            _, task = client.get_task(DATASET)
            latencies.append(time.perf_counter() - began)
            if task.task_id < 0:
                break
            client.report_task_result(DATASET, task.task_id, "")
            done[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    begin.wait()
    for thread in threads:
        thread.join()
    report(sum(done), sorted(latencies))


def report(committed: int, latencies: list[float]) -> None:
    """Print the last line: what leases.py reads. `latencies` ascending, in seconds."""
    found = {
        "committed": committed,
        "calls": len(latencies),
        "p50_ms": 1e3 * latencies[len(latencies) // 2],
        "p99_ms": 1e3 * latencies[int(len(latencies) * 0.99)],
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
