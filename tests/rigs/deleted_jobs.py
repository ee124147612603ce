"""A RoverJob is deleted: nothing of it is left soon after the last grace period of its pods, as the API server's objects tell it.

The deadline is the specification's: 15 s. It is for a machine with time to spare, so that one on which a look at the cluster takes
longer than there has as many times as long.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime

from kube_chart import Release
from patience import until

from rover_bus.events.errors import AccessDenied
from rover_bus.events.nats_bus import NatsBus

LEFT_S = 15.0
LOOK_S = 0.3  # what one look takes where nothing else runs: three calls of kubectl, and one of the broker


def credentials(release: Release) -> dict[str, str]:
    """Return the credentials of members, by their Secrets."""
    found = release.get("secrets")["items"]
    return {
        each["metadata"]["name"]: b64decode(each["data"]["credential"]).decode()
        for each in found
        if "credential" in each.get("data", {})
    }


def is_let_in(url: str, credential: str) -> bool:
    """Whether the broker still takes a credential."""

    async def connect() -> bool:
        try:
            bus = await NatsBus.connect(url, secret=credential)
        except AccessDenied:
            return False
        await bus.close()
        return True

    return asyncio.run(connect())


class Leaving:
    """What is left of a job that is being deleted, and when the last grace period of its pods ends."""

    def __init__(self, release: Release, url: str, job: str) -> None:
        self._release, self._url, self._job = release, url, job
        self._kept = set(release.secrets()) - set(credentials(release))
        self._credential = next(iter(credentials(release).values()))
        self._looks: list[float] = []
        self.grace_ends_s = time.time()

    def left(self) -> list[str]:
        """Return the objects that are there, and whether a credential of a member still opens the broker."""
        began_s = time.monotonic()
        pods = self._release.get("pods", "-l", "app.kubernetes.io/component=member")["items"]
        for each in pods:
            if (ends := each["metadata"].get("deletionTimestamp")) is not None:
                self.grace_ends_s = max(self.grace_ends_s, datetime.fromisoformat(ends).timestamp())
        found = [f"pod {each['metadata']['name']}" for each in pods]
        found += [f"Secret {each}" for each in self._release.secrets() if each not in self._kept]
        found += self._release.kubectl("get", "rj", self._job, "--ignore-not-found", "-o", "name").split()
        found += ["the rights of a member"] if is_let_in(self._url, self._credential) else []
        self._looks.append(time.monotonic() - began_s)
        return found

    @property
    def slowness(self) -> float:
        """How many times as long as on a machine with time to spare a look takes here; at least 1."""
        return max(sum(self._looks) / len(self._looks) / LOOK_S, 1.0)


def delete_in_time(release: Release, url: str, job: str, also: Callable[[], list[str]] = list) -> None:
    """Delete a RoverJob whose namespace has no other. also: what else is to be gone, by words."""
    leaving = Leaving(release, url, job)
    release.kubectl("delete", "rj", job, "--wait=false")
    left: list[str] = ["all"]
    seen: list[tuple[float, list[str]]] = []

    def is_gone() -> bool:
        now_left = [*leaving.left(), *also()]
        if now_left != left:
            seen.append((time.time(), now_left))
        left[:] = now_left
        return not left

    until(is_gone, "nothing of it is left", 0.2, lambda: ", ".join(left))
    late_s = time.time() - leaving.grace_ends_s
    story = [f"{at_s - leaving.grace_ends_s:+.1f} s: {', '.join(there) or 'nothing'}" for at_s, there in seen]
    assert late_s <= LEFT_S * leaving.slowness, (late_s, leaving.slowness, story)
