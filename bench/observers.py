"""What followers without a consumer cost a broker: observers and submitters look four times a second (docs/design/0047).

    python -m bench.observers [--followers 20] [--facts 50] [--seconds 20]

A stack's own broker and accounts; the followers follow all facts, once by an operator's consumers and once by an observer's looks,
first with nothing stored and then with so many facts a second. Prints one line a case: the broker's processor, and all followers'.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from rover_bus.auth.vault import Vault
from rover_bus.cli.tenants import of_registrar
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Stored
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS

FACT, BODY = subjects.job_fact("train", "job.opened"), b"x" * 400


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--followers", type=int, default=20)
    parser.add_argument("--facts", type=float, default=50.0, help="a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        asyncio.run(measure(Path(directory), options.followers, options.facts, options.seconds))


async def measure(directory: Path, followers: int, facts: float, seconds: float) -> None:
    """Measure all cases on one broker."""
    vault = Vault(directory / "auth")
    vault.write_credentials("h1")
    with EmbeddedBroker(directory / "broker", rights=vault.server_configuration) as broker:
        async with of_registrar(broker.url, vault.owner_credentials()) as owner:
            await owner.ensure(STREAMS, BUCKETS)
            assert broker.pid is not None
            server = psutil.Process(broker.pid)
            for rate in (0.0, facts):
                await one_case("nothing follows", [], owner, server, rate, seconds)
                for how, role in (("consumers", "operator"), ("looks", "observer")):
                    secret = vault.credentials_file(role, "h1").read_text()  # type: ignore[arg-type]
                    following = [await NatsBus.connect(broker.url, secret=secret) for _ in range(followers)]
                    await one_case(f"{followers} followers by {how}", following, owner, server, rate, seconds)
                    for each in following:
                        await each.close()


async def one_case(
    what: str,
    following: list[NatsBus],
    owner: NatsBus,
    server: psutil.Process,
    rate: float,
    seconds: float,
) -> None:
    """Measure one case, and print."""
    late_s: list[float] = []
    sent = 0

    def take(stored: Stored) -> None:
        late_s.append(time.time() - stored.time_ms / 1000)

    for each in following:
        await each.follow(FACTS, [FACT], take)
    used = [sum(server.cpu_times()[:2]), time.process_time()]
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if rate:
            await owner.append(FACTS, FACT, BODY)
            sent += 1
        await asyncio.sleep(min(1 / rate if rate else seconds, left_s))
    broker_s, own_s = sum(server.cpu_times()[:2]) - used[0], time.process_time() - used[1]
    late = sorted(late_s)
    median_ms = f", median {1000 * late[len(late) // 2]:.0f} ms after it was stored" if late else ""
    print(
        f"{what}, {sent / seconds:.0f} facts/s: broker {100 * broker_s / seconds:.1f} % of a core, "
        f"followers and writer {100 * own_s / seconds:.1f} %{median_ms}",
        flush=True,
    )


if __name__ == "__main__":
    main()
