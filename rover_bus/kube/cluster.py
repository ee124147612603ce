"""What the platforms of all nodes share: one connection, one cache of our pods, of what has ended, and of the nodes;
and what was tried of programs.

Built once a process; each node's platform (platform.py) listens to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rover_bus.kube.api import Api
from rover_bus.kube.ends import OF_ENDS
from rover_bus.kube.kinds import CONFIG_MAP, NODE, POD
from rover_bus.kube.pods import OF_MEMBERS, PodSettings
from rover_bus.kube.trials import PodTrials
from rover_bus.kube.watching import Mirror


class KubeCluster:
    """One cluster, as one process sees it. `namespaces`: where members are; "": everywhere."""

    def __init__(self, api: Api, settings: PodSettings, namespaces: Sequence[str]) -> None:
        self.api, self.settings = api, settings
        self.pods = Mirror(api, POD, namespaces, _selector(OF_MEMBERS))
        self.ends = Mirror(api, CONFIG_MAP, namespaces, _selector(OF_ENDS))
        self.nodes = Mirror(api, NODE)
        self.trials = PodTrials(api, settings)

    async def ready(self) -> None:
        """Return once all of it was listed."""
        for each in (self.pods, self.ends, self.nodes):
            await each.ready()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in (self.pods, self.ends, self.nodes):
                group.create_task(each.run())


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
