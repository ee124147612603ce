"""The keys of a stack on disk, the credentials that it gives out, and what its broker must know of them.

In its directory, which only its owner can enter: `keys/NAME.nk` (seeds, made once and kept over upgrades), `keys/sockets` (from
which the secrets of jobs' sockets are derived), `creds/ROLE[-HOST].creds` (of its processes and people, anew at each start).
Fed by the stack's start and, on a host, by whatever starts members; feeds the broker's configuration and processes. Whoever has the
directory has the stack: it is backed up with the store, and never printed. Members' credentials are not written down at all.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rover_bus.auth import accounts, tokens
from rover_bus.auth.roles import MEMBER_ROLES, ROLES, RoleName
from rover_bus.events import credentials
from rover_bus.events.errors import InputError
from rover_bus.events.subjects import name as check_name

MOST_SECRET_BYTES = 256
ROOT, SYSTEM = "operator", "account-system"  # keys: of NATS's operator, which signs all accounts
CONTROL, MEMBERS = "account-control", "account-members"


@dataclass(frozen=True, slots=True)
class Vault:
    """The keys below a directory; they are made when they are first asked for."""

    root: Path

    @classmethod
    def beside(cls, credentials_file: str | Path) -> Vault | None:
        """Return the vault that a credentials file lies in; None for a file from elsewhere."""
        vault = cls(Path(credentials_file).absolute().parent.parent)
        return vault if vault._seed_file(CONTROL).exists() else None

    def credentials_file(self, role: RoleName, host: str = "") -> Path:
        """Return where the credentials of a process or a person of the stack are; those of a daemon are its host's."""
        of_host = f"-{check_name(host, 'host')}" if "host" in ROLES[role].tags else ""
        return self.root / "creds" / f"{role}{of_host}.creds"

    @property
    def control_account(self) -> str:
        """The public key of the account that holds the streams."""
        return tokens.public(self._seed(CONTROL))

    # -- what the broker needs -----------------------------------------------------------------------------------------

    def server_configuration(self, directory: Path) -> str:
        """Return the lines that make a nats-server enforce all this. `directory`: where it keeps accounts that it is told of."""
        now_s = int(time.time())
        operator, system = self._seed(ROOT), self._seed(SYSTEM)
        token = tokens.operator_token(operator, "rover", tokens.public(system), now_s)
        signed = {
            tokens.public(self._seed(each)): self._account_token(each, now_s)
            for each in (SYSTEM, CONTROL, MEMBERS)
        }
        preload = "".join(f'  {key}: "{value}"\n' for key, value in signed.items())
        return (
            f'operator: "{token}"\n'
            f"system_account: {tokens.public(system)}\n"
            f'resolver: {{ type: full, dir: "{directory}", allow_delete: true, interval: "2m" }}\n'
            f"resolver_preload {{\n{preload}}}\n"
        )

    def _account_token(self, account: str, now_s: int) -> str:
        public = tokens.public(self._seed(account))
        if account == SYSTEM:
            body = accounts.system_claims()
        else:
            keys = {role: tokens.public(self._signing_seed(role)) for role in ROLES}
            body = accounts.claims("control" if account == CONTROL else "members", keys, self.control_account)
        return tokens.account_token(self._seed(ROOT), public, account, body, now_s)

    # -- credentials ---------------------------------------------------------------------------------------------------

    def write_credentials(self, host: str) -> None:
        """Write those of the stack's own processes on a host, and of its people."""
        for role in ROLES:
            if role not in MEMBER_ROLES:
                made = self._user(role, role, {"host": host} if "host" in ROLES[role].tags else {})
                _write(self.credentials_file(role, host), credentials.write(made))

    def member_credentials(self, role: RoleName, job: str, uid: str, member: str, host: str) -> str:
        """Return the text that lets one member of one run of a job do what its role may do for that job."""
        tags = {"job": check_name(job, "job"), "host": check_name(host, "host")}
        made = self._user(role, f"{job}/{member}", tags)
        secret = self.job_secret(job, uid)
        return credentials.write(credentials.Credential(made.token, made.seed, secret))

    def job_secret(self, job: str, uid: str) -> str:
        """Return what servers and workers of one run of a job demand of one another."""
        return hmac.new(self.host_secret, f"{job}/{uid}".encode(), hashlib.sha256).hexdigest()

    @property
    def host_secret(self) -> bytes:
        """What daemons demand of one another when they copy parts of checkpoints."""
        return _read_or_make(self.root / "keys" / "sockets", lambda: secrets.token_hex(32)).encode()

    def _user(self, role: RoleName, name: str, tags: dict[str, str]) -> credentials.Credential:
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        account = tokens.public(self._seed(CONTROL if ROLES[role].account == "control" else MEMBERS))
        token = tokens.user_token(
            self._signing_seed(role), account, tokens.public(seed), name, tags, int(time.time())
        )
        return credentials.Credential(token, seed)

    # -- seeds ---------------------------------------------------------------------------------------------------------

    def _seed_file(self, name: str) -> Path:
        return self.root / "keys" / f"{name}.nk"

    def _signing_seed(self, role: RoleName) -> str:
        return self._seed(f"role-{role}")

    def _seed(self, name: str) -> str:
        kind: tokens.Kind = "operator" if name == ROOT else "account"
        return _read_or_make(
            self._seed_file(name), lambda: tokens.new_seed(kind, secrets.token_bytes(tokens.SEED_BYTES))
        )


def _read_or_make(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file; make it where there is none, whole or not at all. Raises InputError when others can read it."""
    if not path.exists():
        _write(path, make() + "\n", first=True)
    if path.stat().st_mode & 0o077:
        raise InputError(f"others can read the secret in {path}: `chmod 600 {path}`, and replace it")
    with path.open() as file:
        secret = file.read(MOST_SECRET_BYTES).strip()
    if not secret:
        raise InputError(f"{path} is empty: restore the directory {path.parent.parent} from a backup")
    return secret


def _write(path: Path, text: str, *, first: bool = False) -> None:
    """Write a file for its owner alone; `first`: unless another process was first."""
    for directory in (path.parent.parent, path.parent):
        directory.mkdir(mode=0o700, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".fresh-")  # mode 0600
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        if not first:
            os.replace(fresh, path)
        else:
            with suppress(FileExistsError):
                os.link(fresh, path)
    finally:
        Path(fresh).unlink(missing_ok=True)
