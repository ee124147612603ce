"""The accounts of a stack: the system's, the control account with its streams, and the members' without any.

Fed by vault.py with public keys; feeds it the claims to sign. What members may use of the control account is exported and imported
subject by subject, derived from their rights: what no role has, the account cannot reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rover_bus.auth import tokens
from rover_bus.auth.roles import JOB, ROLES, Account, RoleName, crossings

SYSTEM = "system"


def system_claims() -> dict[str, Any]:
    """Return the claims of the account in which the server speaks of itself."""
    return tokens.account_body(stores=False, scopes=[], exports=[], imports=[])


class Signer(NamedTuple):
    """A signing key. `key`: public; `job`: the one job that it can give rights to, "": its role knows no job."""

    key: str
    role: RoleName
    job: str = ""


def claims(account: Account, signers: Iterable[Signer], control: str) -> dict[str, Any]:
    """Return the claims of an account. `signers`: of any account; `control`: the control account's public key."""
    scopes = [
        tokens.scope(
            each.key, f"{each.role} {each.job}".strip(), ROLES[each.role].permissions(each.job or JOB)
        )
        for each in signers
        if ROLES[each.role].account == account
    ]
    asked, heard = crossings()
    crossing = [(subject, "service") for subject in asked] + [(subject, "stream") for subject in heard]
    if account == "control":
        exports = [_export(subject, kind) for subject, kind in crossing]
        return tokens.account_body(stores=True, scopes=scopes, exports=exports, imports=[])
    imports = [_import(subject, kind, control) for subject, kind in crossing]
    return tokens.account_body(stores=False, scopes=scopes, exports=[], imports=imports)


def _export(subject: str, kind: str) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "type": kind}


def _import(subject: str, kind: str, account: str) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "account": account, "type": kind, "local_subject": subject}
