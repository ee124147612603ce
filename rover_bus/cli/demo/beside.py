"""The demo's reference: the same job in one process, beside the training, at the lowest priority.

Fed by demonstration.py; its AUC stands in the verdict. It takes only what the training leaves idle, so that the demo need not wait
for it; what is not done when the time is over is not waited for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from rover_bus.cli.plain import alone_or_joined
from rover_bus.events.job import JobSpec

LOWEST = "19"


class Beside:
    """One run of a job's program without bus and servers. A context manager; leaving it ends what still runs."""

    def __init__(self, spec: JobSpec) -> None:
        quick = spec.replace(data=spec.data.replace(read_latency_s=0.0))
        self._directory = Path(tempfile.mkdtemp(prefix="rover-plain-"))
        spec_file, self._summary = self._directory / "spec.json", self._directory / "summary.json"
        spec_file.write_bytes(msgspec.json.encode(quick))
        files = {"ROVER_SPEC_FILE": str(spec_file), "ROVER_SUMMARY_FILE": str(self._summary)}
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        gently = ["nice", "-n", LOWEST] if shutil.which("nice") else []
        self._process = subprocess.Popen(
            [*gently, *spec.program],
            cwd=spec.directory or None,
            env=alone_or_joined("", "") | spec.environment | files | one_thread,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def auc(self, patience_s: float) -> float | None:
        """Wait so long for the end at most; return the AUC, None when there is none. Nothing is disturbed any more: hurry."""
        with suppress(OSError):  # gone already, or not ours to raise
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 0)
        try:
            status = self._process.wait(max(patience_s, 0.0))
        except subprocess.TimeoutExpired:
            return None
        if status != 0 or not self._summary.exists():
            return None
        summary: dict[str, Any] = msgspec.json.decode(self._summary.read_bytes())
        found: float | None = summary.get("result", {}).get("auc")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
