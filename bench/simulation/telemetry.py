"""What a policy is told: 30 s windows of running jobs, noisy, up to 30 s late, some lost, some twice (`algorithms.md §8`).

Fed by the engine's jobs, feeds `Policy.observe`. The only way from the truth to a policy.
"""

from __future__ import annotations

import numpy as np

from bench.simulation.jobs import Job
from bench.simulation.port import FloatArray, Window
from bench.simulation.weather import WINDOW_S, Weather


class Telemetry:
    """The channel. `channel`: its own stream of chance."""

    def __init__(self, weather: Weather, channel: np.random.Generator) -> None:
        self.weather, self.channel = weather, channel
        self.late: list[Window] = []

    def deliver(self) -> list[Window]:
        """Windows of the last tick: telemetry is late."""
        ready, self.late = self.late, []
        return ready

    def measure(self, job: Job, now: float) -> None:
        """Take one window of a running job; it may be lost, doubled or late."""
        live, mean = job.live, (job.done - job.window_done) / WINDOW_S
        job.window_done = job.done
        if job.state != "running" or live is None or mean <= 0:
            return
        weather, rng = self.weather, self.channel
        noise = float(np.exp(weather.noise * rng.standard_normal()))
        speeds = job.paces(now)
        rates = mean / live.workers * speeds / max(float(speeds.mean()), 1e-9)
        rates = rates * np.exp(0.04 * rng.standard_normal(len(speeds)))
        servers = self._server_busy(job, now)
        used = job.case.server_need_gib(live.servers, job.share) * float(
            np.exp(0.005 * rng.standard_normal())
        )
        ideal = job.ideal(live)
        steady = job.changed_at <= now - WINDOW_S - 1e-6
        window = Window(
            job=job.case.name,
            at_s=now,
            size=live,
            throughput=mean * noise,
            worker_rates=rates,
            server_busy=servers,
            server_used_gib=used,
            worker_used_gib=job.case.worker_gib,
            samples=job.done,
            steady=steady,
            worker_cores_used=self._used(job.busy[0] / live.workers, live.worker_cores),
            server_cores_used=self._used(job.busy[1] / live.servers, live.server_cores),
            worker_cores_peak=self._used(ideal.worker_peak, live.worker_cores),
            server_cores_peak=self._used(ideal.server_peak, live.server_cores),
            worker_hosts=tuple(job.on),
            input_wait=self._waited(job),
        )
        draw = rng.random()
        times = 0 if draw < weather.lost else 2 if draw < weather.lost + weather.doubled else 1
        self.late += [window] * times

    def _waited(self, job: Job) -> float:
        """Share of the workers' time spent waiting for input, within 5 %."""
        assert job.live is not None
        wait = job.ideal(job.live).input_wait
        return min(wait * float(np.exp(0.05 * self.channel.standard_normal())), 1.0) if wait > 0 else 0.0

    def _used(self, cores: float, most: float) -> float:
        if not cores:
            return 0.0
        return min(cores * float(np.exp(0.05 * self.channel.standard_normal())), most)

    def _server_busy(self, job: Job, now: float) -> FloatArray:
        assert job.live is not None
        servers = job.live.servers
        busy = min(job.busy[1] / max(servers * job.live.server_cores, 1e-9), 0.98)
        seen = np.clip(busy * np.exp(0.05 * self.channel.standard_normal(servers)), 0.0, 0.99)
        if now < job.hot_until and job.hot_server < servers:
            seen[job.hot_server] = 0.97
        return np.asarray(seen)
