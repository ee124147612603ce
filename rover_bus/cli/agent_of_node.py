"""A node's agent, put together: where it keeps checkpoints, and the secret by which it copies parts from others.

Called by serve.py, on a connection that has a daemon's rights (beside the stack's keys), or those that an operator gave to its pod
(agent_rights.py), or those of one run of a job, in the pod of one of its servers.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rover_bus.auth.agents import parts_secret
from rover_bus.cli.of_members import learn_tenant, vault_beside
from rover_bus.events import credentials, subjects
from rover_bus.events.bus import Bus
from rover_bus.flash.places import host_root
from rover_bus.node.agent import NodeAgent
from rover_bus.node.host import Host
from rover_bus.node.storage.persister import Places

if TYPE_CHECKING:
    from rover_bus.cli.serve import ServiceOptions


async def keep_checkpoints(
    bus: Bus, options: ServiceOptions, stop: asyncio.Event, ready: Callable[[], None]
) -> None:
    """Run the agent until `stop`."""
    vault = vault_beside(options.secret_file)
    me = Host(
        name=subjects.name(options.host, "host"),
        daemon=secrets.token_hex(6),
        settings=options.settings,
        learn_tenant=partial(learn_tenant, vault),
    )
    places = Places(
        shm=host_root(options.directory),
        storage=Path(options.storage or f"{options.directory}/checkpoints"),
        secret=parts_secret(vault) if vault else credentials.of_sockets(os.environ, options.secret_file),
        bind=options.bind,
        domain=options.domain,
        patient=options.settings.storage,
        made_early=True,
        job=options.job,
        run=options.uid,
    )
    await NodeAgent(bus, me, places).run(stop, ready)
