"""What an installation needs before its pods start, and what is left of it after they are gone (docs/design/0061).

Called by `rover kube prepare` and `rover kube clean`, which are hooks of the Helm chart. Each may be repeated: what is there stays.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rover_bus.auth.agents import AgentVault, parse_pass, write_pass
from rover_bus.auth.key_folder import PARTS, part_of, take_keys, whole_keys
from rover_bus.auth.revoking import revoke_key, revoke_people, revoke_user
from rover_bus.auth.rights import RoleName
from rover_bus.auth.store_limits import StoreLimits, check_limits
from rover_bus.auth.users import REVOKED
from rover_bus.auth.vault import Vault
from rover_bus.events.errors import Refused
from rover_bus.kube.api import Api, ApiRefused, ApiUnreachable, decoded
from rover_bus.kube.crd import definitions
from rover_bus.kube.kinds import (
    CONFIG_MAP,
    DEFINITION,
    LEASE,
    POD,
    SECRET,
    Json,
    Kind,
    Metadata,
    O,
    Ref,
)
from rover_bus.kube.object import API_VERSION, GROUP, VERSION
from rover_bus.kube.operator import LEASE_NAME
from rover_bus.kube.pods import OURS
from rover_bus.kube.roverjobs import ROVER_JOB

CHECK_GROUP = f"check.{GROUP}"  # holds the new schema while objects are tried against it
FOLLOWED = f"{GROUP}/followed"  # on the Secret of all keys: namespaces, with commas between them
PASS = "pass.json"  # in the Secret of agents
ENDED = ("Complete", "Failed")
SERVED_S, LOOK_S = 30.0, 0.2
GONE_S = 40.0  # until operators have left, and then until pods of members have
LEAVE_S = 5  # for members: there is no broker any more that could keep what they hold
REFUSALS = (400, 422)
MOST_NAMED = 20
StoreOfTenants = Mapping[str, int]  # what each may store, in bytes; 0: as much as the broker has


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a kind of ours as it stands in a list, or any other one of which the rest does not matter."""

    metadata: Metadata = Metadata()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is to become of it: a job that has ended, an answer that is settled."""
        found = self.status.get("conditions", [])
        settled = "conditions" not in self.status and bool(self.status.get("state"))
        return settled or any(each.get("type") in ENDED and each.get("status") == "True" for each in found)


class _List(msgspec.Struct, frozen=True, kw_only=True):
    items: list[_Item] = []


# -- keys ----------------------------------------------------------------------------------------------------------------


async def keep_keys(api: Api, secret: Ref, tenants: StoreOfTenants, store_bytes: int = 0) -> list[str]:
    """Have a Secret hold every key of a stack and of its tenants; return the names of those that were made or changed. Keys that
    are there stay, and so do tenants that are not named any more.

    `tenants`: what each may store; `store_bytes`: what the broker may, 0 where it is not known. Raises InputError for limits that
    it cannot set aside.
    """
    try:
        found = await api.read(SECRET, secret)
    except ApiRefused as error:
        if error.status != 404:
            raise
        data = _completed({}, tenants, store_bytes)
        made = {"metadata": {"name": secret.name, "labels": OURS}, "type": "Opaque", "data": data}
        await api.create(SECRET, secret.namespace, made)
        return sorted(data)
    data = _completed(found.data, tenants, store_bytes)
    if new := {name: text for name, text in data.items() if found.data.get(name) != text}:
        about = {"resourceVersion": found.metadata.resource_version}
        await api.patch(SECRET, secret, {"metadata": about, "data": new})
    return sorted(new)


async def keep_parts(api: Api, keys: Ref) -> None:
    """Have a Secret for each process of a stack hold what it needs of the keys that another one holds, as they are now."""
    with _vault_of((await api.read(SECRET, keys)).data) as vault:
        parts = {process: part_of(vault, process) for process in PARTS}
    for process, files in parts.items():
        data = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
        await _put_secret(api, Ref(keys.namespace, f"{keys.name}-{process}"), data)


async def _put_secret(api: Api, ref: Ref, data: dict[str, str]) -> None:
    """Create a Secret, or have one that is there hold this and nothing else."""
    try:
        await api.create(
            SECRET, ref.namespace, {"metadata": {"name": ref.name, "labels": OURS}, "data": data}
        )
    except ApiRefused as error:
        if error.code != "AlreadyExists":
            raise
        there = (await api.read(SECRET, ref)).data
        if there != data:
            await api.patch(SECRET, ref, {"data": dict.fromkeys(there) | data})


async def keep_pass(api: Api, keys: Ref, agents: Ref) -> bool:
    """Have a Secret hold the pass of agents that the stack of these keys takes; return whether it was made."""
    with _vault_of((await api.read(SECRET, keys)).data) as vault:
        made = AgentVault(vault.root).shared_pass
    try:
        there = (await api.read(SECRET, agents)).data.get(PASS, "")
        if parse_pass(base64.b64decode(there)).seal == made.seal:
            return False
    except ApiRefused as error:
        if error.status != 404:
            raise
    await _put_secret(api, agents, {PASS: base64.b64encode(write_pass(made).encode()).decode()})
    return True


async def credentials_of(api: Api, secret: Ref, role: RoleName, tenant: str = "") -> str:
    """Return what lets a person use a stack whose keys a Secret holds, or one tenant of it. Raises ApiRefused where the person may
    not read it, InputError for a tenant that there is not.
    """
    found = await api.read(SECRET, secret)
    with _vault_of(found.data) as vault:
        if tenant:
            return vault.person_credentials(role, tenant)
        vault.write_credentials(secret.namespace)
        return vault.credentials_file(role).read_text()


async def revoke(api: Api, secret: Ref, users: Mapping[str, str], tenant: str = "") -> None:
    """Have a Secret with a stack's keys say whose credentials have no rights any more; its Brain tells the broker.

    `users`: public keys, each with that of its account, "" where that is not known. `tenant`: all of its people as well.
    Raises InputError for keys that are none and tenants that there are not, ApiRefused where the person may not change it.
    """
    found = await api.read(SECRET, secret)
    with _vault_of(found.data) as vault:
        for user, account in users.items():
            if account:
                revoke_user(vault, user, account)
            else:
                revoke_key(vault, user)
        if tenant:
            revoke_people(vault, tenant)
        said = (vault.root / REVOKED).read_bytes()
    about = {"resourceVersion": found.metadata.resource_version}
    data = {REVOKED: base64.b64encode(said).decode()}
    await api.patch(SECRET, secret, {"metadata": about, "data": data})
    await keep_parts(api, secret)


def _completed(data: Mapping[str, str], tenants: StoreOfTenants, store_bytes: int) -> dict[str, str]:
    """Return the Secret's data with the keys that it lacks."""
    with _vault_of(data) as vault:
        if tenants:
            vault.note_tenants({*vault.tenants, *tenants})
            noted = StoreLimits(vault.root)
            for tenant, most_bytes in tenants.items():
                noted.note([tenant], most_bytes)
            check_limits(noted.all, vault.tenants, tenants, store_bytes, "--tenant")
        files = whole_keys(vault)
    return {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}


@contextmanager
def _vault_of(data: Mapping[str, str]) -> Iterator[Vault]:
    """Have the keys of a Secret as a vault for a moment."""
    with tempfile.TemporaryDirectory() as folder:
        vault = Vault(Path(folder) / "auth")
        take_keys(vault, {name: base64.b64decode(text).decode() for name, text in data.items()})
        yield vault


# -- namespaces -----------------------------------------------------------------------------------------------------------


async def require_ended(api: Api, keys: Ref, followed: Sequence[str]) -> None:
    """Have each RoverJob ended in namespaces that an installation followed and follows no more: from then on it has no rights there
    to end their pods, or to let the RoverJobs go. `keys`: the Secret that notes them. Raises Refused, naming the RoverJobs.
    """
    try:
        about = (await api.read(SECRET, keys)).metadata
    except ApiRefused as error:
        if error.status != 404:
            raise
        return  # nothing is installed yet
    dropped = {*filter(None, about.annotations.get(FOLLOWED, "").split(","))} - {*followed}
    found = await _listed(api, f"/{ROVER_JOB.group}/{ROVER_JOB.plural}") if dropped else []
    left = [each.metadata for each in found if each.metadata.namespace in dropped and _holds(each)]
    if left:
        named = ", ".join(f"{each.namespace}/{each.name}" for each in left[:MOST_NAMED])
        raise Refused(
            f"{len(left)} RoverJobs have not ended in namespaces that are followed no more, so nothing was changed: {named}: "
            "let them end or delete them first, or keep their namespaces in watchNamespaces",
            "followed",
        )


def _holds(job: _Item) -> bool:
    """Whether a RoverJob needs an operator: one that has not ended, or waits for our finalizer."""
    return not job.is_over or any(each.startswith(f"{GROUP}/") for each in job.metadata.finalizers)


async def note_followed(api: Api, keys: Ref, followed: Sequence[str]) -> None:
    """Note which namespaces an installation follows, beside its keys."""
    await api.patch(SECRET, keys, {"metadata": {"annotations": {FOLLOWED: ",".join(followed)}}})


# -- the definition --------------------------------------------------------------------------------------------------------


async def put_definitions(api: Api) -> None:
    """Install the definitions of our kinds as this release has them. Raises Refused where an object in use breaks one."""
    there = [each for each in definitions() if await _is_there(api, each)]
    for each in there:
        await _try_objects(api, each)
    for each in definitions():
        ref = Ref("", each["metadata"]["name"])
        if each in there:
            await api.patch(DEFINITION, ref, {"spec": each["spec"]})
        else:
            await api.create(DEFINITION, "", each)
        await _until_served(api, ref)


async def _is_there(api: Api, wanted: Json) -> bool:
    try:
        await api.read(DEFINITION, Ref("", wanted["metadata"]["name"]))
    except ApiRefused as error:
        if error.status != 404:
            raise
        return False
    return True


async def _try_objects(api: Api, wanted: Json) -> None:
    names = wanted["spec"]["names"]
    found = await _listed(api, f"/{ROVER_JOB.group}/{names['plural']}")
    objects = [each for each in found if not each.is_over]
    if not objects:
        return
    async with _schema_to_try(api, wanted):
        broken = [words for each in objects if (words := await _problem(api, names, each))]
    if broken:
        shown = "; ".join(broken[:MOST_NAMED])
        raise Refused(
            f"{len(broken)} {names['kind']}s that have not ended do not satisfy the new schema, so nothing was changed: {shown}",
            "schema",
        )


@asynccontextmanager
async def _schema_to_try(api: Api, wanted: Json) -> AsyncIterator[None]:
    """Have the API server know the new schema under a group of its own."""
    names = {each: wanted["spec"]["names"][each] for each in ("kind", "listKind", "plural", "singular")}
    spec = {**wanted["spec"], "group": CHECK_GROUP, "names": names}
    ref = Ref("", f"{names['plural']}.{CHECK_GROUP}")
    try:
        await api.create(DEFINITION, "", {**wanted, "metadata": {"name": ref.name}, "spec": spec})
    except ApiRefused as error:
        if error.code != "AlreadyExists":  # of a hook that was killed
            raise
        await api.patch(DEFINITION, ref, {"spec": spec})
    try:
        await _until_served(api, ref)
        yield
    finally:
        await api.delete(DEFINITION, ref)


async def _problem(api: Api, names: Json, tried: _Item) -> str:
    """Return what the new schema says against an object; "" for nothing."""
    about = tried.metadata
    path = f"/apis/{CHECK_GROUP}/{VERSION}/namespaces/{about.namespace}/{names['plural']}"
    body = {
        "apiVersion": API_VERSION.replace(GROUP, CHECK_GROUP),
        "kind": names["kind"],
        "metadata": {"name": about.name},
        "spec": tried.spec,
    }
    query = [("dryRun", "All"), ("fieldValidation", "Strict")]
    try:
        async with asyncio.timeout(SERVED_S):
            while True:
                try:
                    await api.call("POST", path, body, query=query)
                    return ""
                except ApiRefused as error:
                    if error.status in REFUSALS:
                        return f"{about.ref}: {error}"
                    if error.status != 404:  # established, and not served yet by this API server
                        raise
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return f"{about.ref}: the API server did not try it within {SERVED_S:.0f} s"


async def _until_served(api: Api, ref: Ref) -> None:
    try:
        async with asyncio.timeout(SERVED_S):
            while True:
                conditions = (await api.read(DEFINITION, ref)).status.conditions or []
                if any(each.type == "Established" and each.status == "True" for each in conditions):
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise ApiUnreachable(
            f"the definition {ref.name} is not established after {SERVED_S:.0f} s: `kubectl describe crd {ref.name}` says why"
        ) from None


# -- what is left --------------------------------------------------------------------------------------------------------


async def clean(
    api: Api, release: str, namespaces: Sequence[str], operators: str, keys: Sequence[str]
) -> None:
    """Remove what would outlive an installation whose pods end: members, our finalizers, records, the keys.

    `namespaces`: of members. `operators`: a selector of pods in the release's that must be gone first. `keys`: Secrets there;
    none: they stay.
    """
    await _until_gone(api, POD.path(Ref(release, "")), operators)
    for each in namespaces:
        await _clean(api, each)
    await _remove(api, LEASE, Ref(namespaces[0], LEASE_NAME))
    for each in keys:
        await _remove(api, SECRET, Ref(release, each))


async def _clean(api: Api, namespace: str) -> None:
    ours = ",".join(f"{key}={value}" for key, value in OURS.items())
    for job in await _listed(api, ROVER_JOB.path(Ref(namespace, ""))):
        await _free(api, ROVER_JOB, job.metadata)
    pods = POD.path(Ref(namespace, ""))
    for pod in await _listed(api, pods, ours):
        await _remove(api, POD, pod.metadata.ref, grace_s=LEAVE_S)
        await _free(api, POD, pod.metadata)
    for each in await _listed(api, CONFIG_MAP.path(Ref(namespace, "")), ours):
        await _remove(api, CONFIG_MAP, each.metadata.ref)
    await _until_gone(api, pods, ours)


async def _free(api: Api, kind: Kind[O], about: Metadata) -> None:
    """Take our finalizers off; those of others stay."""
    left = [each for each in about.finalizers if not each.startswith(f"{GROUP}/")]
    if left == about.finalizers:
        return
    try:
        await api.patch(kind, about.ref, {"metadata": {"finalizers": left, "uid": about.uid}})
    except ApiRefused as error:
        if error.status != 404:
            raise


async def _remove(api: Api, kind: Kind[O], ref: Ref, grace_s: int | None = None) -> None:
    try:
        await api.delete(kind, ref, grace_s=grace_s)
    except ApiRefused as error:
        if error.status != 404:
            raise


async def _listed(api: Api, path: str, selector: str = "") -> list[_Item]:
    """Return objects of a path; none where their kind is not defined."""
    try:
        body = await api.call("GET", path, query=[("labelSelector", selector)] if selector else [])
    except ApiRefused as error:
        if error.status != 404:
            raise
        return []
    return decoded(body, _List).items


async def _until_gone(api: Api, path: str, selector: str) -> None:
    """Return when nothing has these labels; after a while say what is still there."""
    try:
        async with asyncio.timeout(GONE_S):
            while left := await _listed(api, path, selector):  # noqa: ASYNC110 - it is the API server that is waited for
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        shown = ", ".join(str(each.metadata.ref) for each in left[:MOST_NAMED])
        raise Refused(
            f"{path} still holds {shown} after {GONE_S:.0f} s: look why with kubectl", "left"
        ) from None
