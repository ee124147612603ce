"""The accounts of a stack: the system's, the control account, each tenant's with its streams, members' and observers' without any.

Fed by vault.py with public keys; feeds it the claims to sign. What members may use of their tenant's account is exported and
imported subject by subject, derived from their rights: what no role has, the account cannot reach. The tenant `default` has its
streams in the control account. What crosses between the control account and another tenant's stands here, and nothing else does
(docs/design/0050): the control account reaches the tenant's streams; the tenant asks the keeper and the daemons, and looks up
two buckets, without consumers. What only looks stands in an account of its own beside each: what a stream answers comes back there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rover_bus.auth import tokens
from rover_bus.auth.rights import JOB, Account, RoleName
from rover_bus.auth.roles import (
    ABOUT_SERVICES,
    EVERY_STREAM,
    OF_TENANTS,
    ROLES,
    STORE,
    crossings,
    of_page,
    of_submitters,
)
from rover_bus.events.nats_jetstream import API, bucket_stream
from rover_bus.events.streams import FACTS, LOG, LOOKED_UP, PROFILES
from rover_bus.events.subjects import (
    CONTROL,
    DEFAULT_TENANT,
    copied_of_tenant,
    into_tenant,
    matches,
    of_tenant,
    seen_of_tenant,
)

SYSTEM = "system"
_DAEMONS, _KEEPER = "rover.daemon.>", "rover.keeper.>"
_STORED = ("rover.job.>", "rover.host.>", "$KV.>")  # what the control account stores with a tenant
_FLOWS = tuple(f"$JS.FC.{stream}.>" for stream in (LOG, FACTS, PROFILES))
_LOOKED_UP = tuple(
    f"{API}.DIRECT.GET.{bucket_stream(bucket)}{rest}" for bucket in LOOKED_UP for rest in ("", ".>")
)
MANY = "Stream"  # answers to one request
EVERYTHING = "rover.>"
_ASKED = tuple(f"{API}.{call}" for call in ("STREAM.MSG.GET.*", "STREAM.INFO.*", *STORE))
_READ = (f"{API}.DIRECT.GET.>", *_ASKED)
# What the control account shows: how it is shared, and whether one request has many answers.
_SHOWN: dict[str, tuple[str, str]] = {
    **{each: ("service", MANY if "DIRECT" in each else "") for each in _READ},
    ABOUT_SERVICES: ("service", MANY),
    EVERYTHING: ("stream", ""),
}


def _read_in(streams: Iterable[str]) -> list[str]:
    """Return what reads these streams, by the names that they have where they are.

    Not all at once: a broker takes it for a cycle, and leaves it out, when an account imports under its own name what the exporting
    account's importers look up there (`_LOOKED_UP`). Those buckets are read one message at a time (nats_wire.py).
    """
    direct = (f"{API}.DIRECT.GET.{stream}{rest}" for stream in streams for rest in ("", ".>"))
    return [*(each for each in direct if each not in _LOOKED_UP), *_ASKED]


class Signer(NamedTuple):
    """A signing key. `key`: public; `job`: the one job that it can give rights to, "": its role knows no job."""

    key: str
    role: RoleName
    job: str = ""
    tenant: str = DEFAULT_TENANT


def system_claims() -> dict[str, Any]:
    """Return the claims of the account in which the server speaks of itself."""
    return tokens.account_body(stores=False, scopes=[], exports=[], imports=[])


def control_claims(signers: Iterable[Signer], tenants: Mapping[str, str]) -> dict[str, Any]:
    """Return the claims of the control account. `signers`: of any account; `tenants`: the public keys of their accounts."""
    exports = [
        _export(subject, kind) for subject, kind in _crossing() if not _is_within(subject, kind, _SHOWN)
    ]
    exports += [_export(subject, kind, answers) for subject, (kind, answers) in _SHOWN.items()]
    exports += [_export(subject, "service") for subject in of_page()]
    imports = []
    if tenants:
        exports += [_export(of_tenant("*", each), "service") for each in (_DAEMONS, _KEEPER)]
        imports = [each for tenant, key in sorted(tenants.items()) for each in _of_tenant(tenant, key)]
    scopes = _scopes(signers, DEFAULT_TENANT, "control", "tenant")
    return tokens.account_body(stores=True, scopes=scopes, exports=exports, imports=imports)


def tenant_claims(
    signers: Iterable[Signer], tenant: str, control: str, store_bytes: int = 0
) -> dict[str, Any]:
    """Return the claims of a tenant's account. `control`: the control account's public key; `store_bytes`: 0, no own limit."""
    whole = dict.fromkeys((*_STORED, *_FLOWS), ("service", ""))
    whole |= dict.fromkeys((*_delivered(tenant), EVERYTHING), ("stream", ""))
    whole[f"{API}.>"] = ("service", MANY)
    exports = [
        _export(subject, kind)
        for subject, kind in _crossing()
        if not _is_of_control(subject) and not _is_within(subject, kind, whole)
    ]
    exports += [_export(subject, kind, answers) for subject, (kind, answers) in whole.items()]
    imports = [_import(of_tenant(tenant, each), "service", control, each) for each in (_DAEMONS, _KEEPER)]
    imports += [_import(each, "service", control, f"{CONTROL}{each}") for each in _LOOKED_UP]
    scopes = _scopes(signers, tenant, "tenant")
    return tokens.account_body(
        stores=True, scopes=scopes, exports=exports, imports=imports, store_bytes=store_bytes
    )


def members_claims(signers: Iterable[Signer], tenant: str, account: str, control: str) -> dict[str, Any]:
    """Return the claims of the account of a tenant's members. `account`: of the tenant; `control`: both public keys."""
    imports = [
        _import(subject, kind, account, subject)
        for subject, kind in _crossing()
        if account == control or not _is_of_control(subject)
    ]
    if account != control:
        imports += [_import(of_tenant(tenant, _DAEMONS), "service", control, _DAEMONS)]
    scopes = _scopes(signers, tenant, "members")
    return tokens.account_body(stores=False, scopes=scopes, exports=[], imports=imports)


def observers_claims(
    signers: Iterable[Signer], tenant: str, accounts: Mapping[str, str], control: str
) -> dict[str, Any]:
    """Return the claims of the account of a tenant's people: viewers and submitters. `accounts`: public keys of the tenants that
    there are; `control`: the control account's. Who looks at `default` looks at all tenants.
    """
    if tenant == DEFAULT_TENANT:
        imports = [
            _import(each, "service", control, each) for each in (*_read_in(EVERY_STREAM), ABOUT_SERVICES)
        ]
        imports += [_import(EVERYTHING, "stream", control, EVERYTHING)]
        imports += [_import(each, "service", control, each) for each in of_page()]
        imports += [
            _import(each, "service", key, local)
            for named, key in sorted(accounts.items())
            for each, local in (
                *((each, of_tenant(named, each)) for each in _READ),
                *((each, into_tenant(named, each)) for each in of_page()),
            )
        ]
    else:
        imports = [_import(each, "service", accounts[tenant], each) for each in _read_in(OF_TENANTS)]
        imports += [_import(EVERYTHING, "stream", accounts[tenant], EVERYTHING)]
        imports += [_import(each, "service", accounts[tenant], each) for each in of_submitters()]
        imports += [
            _import(of_tenant(tenant, each), "service", control, each) for each in (_DAEMONS, _KEEPER)
        ]
        imports += [_import(each, "service", control, f"{CONTROL}{each}") for each in _LOOKED_UP]
    scopes = _scopes(signers, tenant, "observers")
    return tokens.account_body(stores=False, scopes=scopes, exports=[], imports=imports)


def _of_tenant(tenant: str, key: str) -> list[dict[str, Any]]:
    """Return what the control account imports of a tenant's."""
    return [
        _import(f"{API}.>", "service", key, of_tenant(tenant, f"{API}.>")),
        *(_import(each, "service", key, into_tenant(tenant, each)) for each in _STORED),
        *(_import(each, "service", key, each) for each in _FLOWS),
        *(_import(each, "stream", key, each) for each in _delivered(tenant)),
    ]


def _delivered(tenant: str) -> tuple[str, str]:
    return seen_of_tenant(tenant, ">"), copied_of_tenant(tenant, ">")


def _is_of_control(subject: str) -> bool:
    """Whether the control account's processes answer it, for members of any tenant."""
    return subject.startswith((_DAEMONS.removesuffix(">"), "rover.registrar."))


def _is_within(subject: str, kind: str, exports: Mapping[str, tuple[str, str]]) -> bool:
    """Whether an export takes it in already: a broker refuses an account that exports a subject twice."""
    return any(kind == of and matches(each, subject) for each, (of, _) in exports.items())


def _crossing() -> list[tuple[str, str]]:
    asked, heard = crossings()
    return [(subject, "service") for subject in asked] + [(subject, "stream") for subject in heard]


def _scopes(signers: Iterable[Signer], tenant: str, *accounts: Account) -> list[dict[str, Any]]:
    return [
        tokens.scope(
            each.key, f"{each.role} {each.job}".strip(), ROLES[each.role].permissions(each.job or JOB)
        )
        for each in signers
        if each.tenant == tenant and ROLES[each.role].account in accounts
    ]


def _export(subject: str, kind: str, answers: str = "") -> dict[str, Any]:
    made = {"name": subject, "subject": subject, "type": kind}
    return {**made, "response_type": answers} if answers else made


def _import(subject: str, kind: str, account: str, local: str) -> dict[str, Any]:
    return {"name": local, "subject": subject, "account": account, "type": kind, "local_subject": local}
