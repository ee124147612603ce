"""An operator, put together: the API server, the pods that it makes, and a connection to the bus for each node's daemon.

Called by serve.py. Apart from it, because only this process needs a Kubernetes client.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rover_bus.auth.agents import AgentVault
from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.rights import RoleName
from rover_bus.auth.vault import Vault
from rover_bus.cli.collecting import collect_seldom
from rover_bus.cli.of_members import commands_of, credential_of, learn_tenant, vault_beside
from rover_bus.cli.span_settings import inherited
from rover_bus.cli.supervisor import service_command
from rover_bus.events import credentials
from rover_bus.events.errors import InputError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.kube.agents import AgentsOf
from rover_bus.kube.api import Api
from rover_bus.kube.kinds import Ref
from rover_bus.kube.operator import OperatorOptions, run_operator
from rover_bus.kube.pods import PodSettings, SparePods, pod_name, read_template
from rover_bus.kube.sidecars import Sidecars
from rover_bus.node.port import Incarnation, Spare

if TYPE_CHECKING:
    from rover_bus.cli.serve import ServiceOptions

STARTING_S, COLLECT_S = (
    10.0,
    10.0,
)  # pods and facts are read once it leads; those of a minute would be a long collection
IN_PODS = "/var/lib/rover"  # the state directory of members


async def operate(options: ServiceOptions, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Run an operator until `stop`. Raises InputError for options of which no pod can be made."""
    if not options.image or not options.namespaces:
        raise InputError("an operator makes pods of an --image in a --namespace: name both")
    vault = vault_beside(options.secret_file)
    given = OperatorOptions(
        pods=_pods(options, vault),
        namespaces=options.namespaces,
        connect=partial(_connect, options, vault),
        connect_asking=partial(_connect_asking, options, vault),
        credential_of=partial(_credential_of, vault, bool(options.sidecars)),
        learn_tenant=partial(learn_tenant, vault),
        settings=options.settings,
        agents=_agents(options, vault),
        plan_answers=options.plan_answers,
        tenants=options.tenants,
        beside=partial(collect_seldom, first_s=STARTING_S, every_s=COLLECT_S),
    )
    api, leasing = await Api.connect(options.kubeconfig), await Api.connect(options.kubeconfig)
    try:
        await run_operator(api, leasing, given, stop, ready)
    finally:
        await api.close()
        await leasing.close()


def _pods(options: ServiceOptions, vault: Vault | None) -> PodSettings:
    """A tenant's members are in the namespace of its name, where there is one; all others in the first."""
    spaces = options.namespaces
    environment = {"ROVER_URL": options.url, "ROVER_STATE_DIR": options.directory or IN_PODS}
    if vault is None:
        environment["ROVER_SECRET_FILE"] = options.secret_file
    return PodSettings(
        options.image,
        lambda tenant: tenant if tenant in spaces else spaces[0],
        commands=commands_of(options.sets, OWN_PYTHON),
        environment=environment,
        of_masters=inherited(os.environ),
        templates=read_template(options.pod_template),
        python=options.python,
        memory=options.node_memory,
        sidecars=_sidecars(options, vault),
        spares=_spares(options, vault),
    )


def _spares(options: ServiceOptions, vault: Vault | None) -> SparePods | None:
    """Return how workers are made ready before they are members; None where no priority is named that all else comes before."""
    if not options.spare_priority:
        return None

    def credential(spare: Spare, host: str) -> str:
        if vault is None:
            return ""
        return vault.member_credentials("spare", spare.job, spare.uid, f"spare-{spare.number}", host)

    return SparePods(
        priority_class=options.spare_priority,
        credential_of=credential,
        member_credential_of=partial(credential_of, vault),
    )


def _sidecars(options: ServiceOptions, vault: Vault | None) -> Sidecars | None:
    """Return how servers get an agent in their pods; None where they get none."""
    if not options.sidecars:
        return None

    def credential(run: Incarnation, pod: str) -> str:
        if vault is None:
            return ""
        return vault.member_credentials("sidecar", run.job, run.uid, f"agent-of-{run.member}", pod)

    command = service_command("node-agent", python=OWN_PYTHON)
    return Sidecars(command=command, size=options.sidecars, credential_of=credential)


def _credential_of(vault: Vault | None, sidecars: bool, run: Incarnation, host: str) -> str:
    """Return a member's own. A server asks what keeps its parts, as its credential names it: its pod's agent, else its host's."""
    beside = sidecars and run.member.role == "ps"
    return credential_of(vault, run, pod_name(run.job, run.uid, run.member) if beside else host)


def _agents(options: ServiceOptions, vault: Vault | None) -> AgentsOf | None:
    """Return how agents of nodes get their rights; None where there are none, or all processes share one word."""
    if not options.agents or vault is None:
        return None
    namespace, _, account = options.agents.partition("/")
    if not account:
        raise InputError(f"--agents {options.agents}: name their service account as NAMESPACE/ACCOUNT")
    connect = partial(_connect_as, options, vault, "registrar")
    return AgentsOf(vault=AgentVault(vault.root), account=Ref(namespace, account), connect=connect)


async def _connect_as(options: ServiceOptions, vault: Vault, role: RoleName) -> NatsBus:
    vault.write_credentials(options.host)
    file = str(vault.credentials_file(role))
    return await NatsBus.connect(options.url, secret=_shown(vault, file), secret_source=file, name=role)


def _shown(vault: Vault | None, file: str) -> str:
    """Return what is shown to the broker. Where all share one word, it may come by the environment, as to members."""
    return credentials.of_process({} if vault else os.environ, file)


async def _connect(options: ServiceOptions, vault: Vault | None, host: str) -> NatsBus:
    """Return a connection with the rights of a host's daemon."""
    file = options.secret_file
    if vault is not None:
        vault.write_credentials(host, only="daemon")
        file = str(vault.credentials_file("daemon", host))
    secret = _shown(vault, file)
    return await NatsBus.connect(options.url, secret=secret, secret_source=file, name=f"daemon-{host}")


async def _connect_asking(options: ServiceOptions, vault: Vault | None) -> NatsBus:
    """Return a connection that may submit jobs and ask of them. Raises InputError beside the keys of a host that joined."""
    file = options.secret_file
    if vault is not None:
        if isinstance(vault, HostVault):
            raise InputError(
                f"{vault.root} holds the keys of a host alone, which submits no jobs: run the operator beside the stack's own keys"
            )
        return await _connect_as(options, vault, "operator")
    secret = _shown(vault, file)
    return await NatsBus.connect(options.url, secret=secret, secret_source=file, name="operator")
