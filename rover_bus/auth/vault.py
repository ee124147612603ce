"""The keys of a stack on disk, the credentials that it gives out, and what its broker must know of them.

In its directory, which only its owner can enter: `keys/NAME.nk` (seeds, made once and kept over upgrades), `keys/NAME.pub` (of
accounts: a host needs no more of them to make its members' credentials), `keys/sockets` (from which the secrets of jobs' sockets
are derived), `keys/authority.key` and `authority.pem` (its certificate authority, once it listens beyond loopback), `runs` (of
jobs whose members have rights now), and `creds/ROLE[-HOST].creds` (of its processes and people, again at each start).
Fed by the stack's start and, on a host, by whatever starts members; feeds the broker's configuration and processes. A copy of
the directory gives all rights: it is backed up with the store, and never printed. Members' credentials are not written down at all.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rover_bus.auth import accounts, tokens
from rover_bus.auth.accounts import Signer
from rover_bus.auth.roles import MEMBER_ROLES, ROLES, Account, RoleName
from rover_bus.events import credentials
from rover_bus.events.errors import InputError
from rover_bus.events.subjects import name as check_name

if TYPE_CHECKING:
    from rover_bus.auth import certificates
    from rover_bus.auth.joining import HostGrant, JoinToken
    from rover_bus.events.join_requests import HostJoinRequest

MOST_SECRET_BYTES = 256
ROOT, SYSTEM = "operator", "account-system"  # keys: of NATS's operator, which signs all accounts
CONTROL, MEMBERS = "account-control", "account-members"
ACCOUNT_OF: dict[Account, str] = {"control": CONTROL, "members": MEMBERS}  # and the name of its key


class CertificateFiles(NamedTuple):
    """Where what a socket shows and proves is."""

    certificate: Path
    key: Path


class RunOfJob(NamedTuple):
    """One run of a job: its name may be used again, its uid is not."""

    job: str
    uid: str


@dataclass(frozen=True, slots=True)
class Vault:
    """The keys below a directory; they are made when they are first asked for."""

    root: Path

    @classmethod
    def beside(cls, credentials_file: str | Path) -> Vault | None:
        """Return the vault that a credentials file lies in; None for a file from elsewhere."""
        vault = cls(Path(credentials_file).absolute().parent.parent)
        known = vault._seed_file(CONTROL).exists() or vault._public_file(CONTROL).exists()
        return vault if known else None

    def credentials_file(self, role: RoleName, host: str = "") -> Path:
        """Return where the credentials of a process or a person of the stack are; those of a daemon are its host's."""
        of_host = f"-{check_name(host, 'host')}" if "host" in ROLES[role].tags else ""
        return self.root / "creds" / f"{role}{of_host}.creds"

    @property
    def control_account(self) -> str:
        """The public key of the account that holds the streams."""
        return self.public_key(CONTROL)

    def public_key(self, account: str) -> str:
        """Return the public key of an account (`account-control`, ...): of its seed, or as it was told where the seed is not."""
        told = self._public_file(account)
        if told.exists() and not self._seed_file(account).exists():
            return told.read_text().strip()
        return tokens.public(self._seed(account))

    def _tell_public_keys(self) -> None:
        """Write what a host needs to know of the accounts, beside the seeds that it must not have."""
        for account in (CONTROL, MEMBERS):
            write_secret(self._public_file(account), self.public_key(account) + "\n")

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
            signers = [*self._signers_of_processes(), *self._signers_of_runs()]
            name: Account = "control" if account == CONTROL else "members"
            body = accounts.claims(name, signers, self.control_account)
        return tokens.account_token(self._seed(ROOT), public, account, body, now_s)

    # -- certificates --------------------------------------------------------------------------------------------------

    @property
    def authority_file(self) -> Path:
        """The certificate that all others of the stack are signed by, as PEM."""
        return self.root / "authority.pem"

    @property
    def authority(self) -> str:
        """What connections trust, as one line; "" for a stack that never listened beyond loopback."""
        try:
            lines = self.authority_file.read_text().splitlines()
        except OSError:
            return ""
        return "".join(line for line in lines if not line.startswith("-"))

    def certificate(self, address: str) -> CertificateFiles:
        """Return what a broker shows at an address, made again when there is none or a third of its time is left."""
        from rover_bus.auth import certificates

        now = certificates.now_utc()
        authority = self._make_authority(now)
        files = CertificateFiles(
            self.root / "certificates" / "broker.pem", self.root / "certificates" / "broker.key"
        )
        with suppress(OSError):
            former = certificates.Pair(files.certificate.read_text(), files.key.read_text())
            if certificates.is_usable(former, authority, [address], now):
                return files
        made = certificates.make_served(authority, [address], now)
        write_secret(files.key, made.key)
        write_secret(files.certificate, made.certificate)
        return files

    def _make_authority(self, now: datetime) -> certificates.Pair:
        from rover_bus.auth import certificates

        key, certificate = self.root / "keys" / "authority.key", self.authority_file
        if not key.exists():
            made = certificates.make_authority(now)
            write_secret(key, made.key + made.certificate, first=True)
        both = key.read_text()
        split = both.index("-----BEGIN CERTIFICATE")
        pair = certificates.Pair(both[split:], both[:split])
        if not certificate.exists():
            write_secret(certificate, pair.certificate)
        return pair

    # -- runs of jobs --------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> frozenset[RunOfJob]:
        """The runs whose members may do anything at all."""
        try:
            return frozenset(RunOfJob(*each) for each in json.loads((self.root / "runs").read_text()))
        except (OSError, ValueError, TypeError):
            return frozenset()

    def admit(self, runs: Iterable[RunOfJob]) -> list[str]:
        """Note which runs there are; return the accounts' tokens to tell the broker. What is not named has no rights any more."""
        write_secret(self.root / "runs", json.dumps(sorted(runs)) + "\n")
        now_s = int(time.time())
        return [self._account_token(each, now_s) for each in (CONTROL, MEMBERS)]

    def system_credentials(self) -> str:
        """Return what may tell the broker of accounts."""
        body = {"type": "user", "pub": {}, "sub": {}, **tokens.NO_USER_LIMITS}
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        token = tokens.signed(tokens.public(seed), "registrar", self._seed(SYSTEM), body, int(time.time()))
        return credentials.write(credentials.Credential(token, seed, authority=self.authority))

    def _signers_of_processes(self) -> list[Signer]:
        roles = [role for role in ROLES if role not in MEMBER_ROLES]
        return [Signer(tokens.public(self._seed(f"role-{role}")), role) for role in roles]

    def _signers_of_runs(self) -> list[Signer]:
        return [
            Signer(tokens.public(self._run_seed(role, run)), role, run.job)
            for run in sorted(self.runs)
            for role in MEMBER_ROLES
        ]

    def _run_seed(self, role: RoleName, run: RunOfJob) -> str:
        """Return the key that signs the members of one run: each daemon derives it, and no key is sent anywhere."""
        derived = hmac.new(
            self._seed(f"role-{role}").encode(), f"{run.job}/{run.uid}".encode(), hashlib.sha256
        )
        return tokens.new_seed("account", derived.digest())

    # -- credentials ---------------------------------------------------------------------------------------------------

    def write_credentials(self, host: str) -> None:
        """Write those of the stack's own processes on a host, and of its people."""
        self._tell_public_keys()
        for role in ROLES:
            if role not in (*MEMBER_ROLES, "joiner"):
                tags = {"host": host} if "host" in ROLES[role].tags else {}
                made = self._user(role, role, self._seed(f"role-{role}"), tags)
                write_secret(self.credentials_file(role, host), credentials.write(made))

    def member_credentials(self, role: RoleName, job: str, uid: str, member: str, host: str) -> str:
        """Return the text that lets one member of one run of a job do what its role may do for that job."""
        run = RunOfJob(check_name(job, "job"), uid)
        made = self._user(
            role, f"{job}/{member}", self._run_seed(role, run), {"host": check_name(host, "host")}
        )
        secret = self.job_secret(job, uid)
        return credentials.write(credentials.Credential(made.token, made.seed, secret, self.authority))

    def job_secret(self, job: str, uid: str) -> str:
        """Return what servers and workers of one run of a job demand of one another."""
        return hmac.new(self.host_secret, f"{job}/{uid}".encode(), hashlib.sha256).hexdigest()

    @property
    def host_secret(self) -> bytes:
        """What daemons demand of one another when they copy parts of checkpoints."""
        return _read_or_make(self.root / "keys" / "sockets", lambda: secrets.token_hex(32)).encode()

    def _user(
        self, role: RoleName, name: str, signing_seed: str, tags: dict[str, str]
    ) -> credentials.Credential:
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        account = self._account_of(role)
        token = tokens.user_token(signing_seed, account, tokens.public(seed), name, tags, int(time.time()))
        return credentials.Credential(token, seed, authority=self.authority)

    def _account_of(self, role: RoleName) -> str:
        """Return the public key of the account that users of a role stand in."""
        return self.public_key(ACCOUNT_OF[ROLES[role].account])

    # -- hosts that join -----------------------------------------------------------------------------------------------

    def join_token(self, url: str, valid_s: int) -> JoinToken:
        """Return what lets one host join within `valid_s`. Raises InputError for a stack that listens on loopback alone."""
        from rover_bus.auth.joining import JoinToken, fingerprint_of

        if not url.startswith("tls://") or not self.authority:
            raise InputError(f"no other host can reach {url}: start the stack with `rover up --bind ADDRESS`")
        now_s = int(time.time())
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        signer, account = self._seed("role-joiner"), self._account_of("joiner")
        user = tokens.user_token(
            signer, account, tokens.public(seed), "joiner", {}, now_s, expires_s=now_s + valid_s
        )
        return JoinToken(
            url=url,
            fingerprint=fingerprint_of(self.authority),
            authority=self.authority,
            expires_s=now_s + valid_s,
            user_token=user,
            user_seed=seed,
        )

    def grant(self, request: HostJoinRequest) -> HostGrant:
        """Return what a host gets: the rights of its daemon, and what signs and protects members there. Raises InputError."""
        from rover_bus.auth.joining import HostGrant

        host = check_name(request.host, "host")
        daemon = tokens.user_token(
            self._seed("role-daemon"),
            self._account_of("daemon"),
            tokens.check_user(request.user),
            "daemon",
            {"host": host},
            int(time.time()),
        )
        return HostGrant(
            authority=self.authority,
            accounts={name: self.public_key(name) for name in ACCOUNT_OF.values()},
            seeds={f"role-{role}": self._seed(f"role-{role}") for role in MEMBER_ROLES},
            sockets=self.host_secret.decode(),
            daemon_token=daemon,
        )

    # -- seeds ---------------------------------------------------------------------------------------------------------

    def _seed_file(self, name: str) -> Path:
        return self.root / "keys" / f"{name}.nk"

    def _public_file(self, account: str) -> Path:
        return self.root / "keys" / f"{account}.pub"

    def _seed(self, name: str) -> str:
        kind: tokens.Kind = "operator" if name == ROOT else "account"
        return _read_or_make(
            self._seed_file(name), lambda: tokens.new_seed(kind, secrets.token_bytes(tokens.SEED_BYTES))
        )


def _read_or_make(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file; make it where there is none, whole or not at all. Raises InputError when others can read it."""
    if not path.exists():
        write_secret(path, make() + "\n", first=True)
    if path.stat().st_mode & 0o077:
        raise InputError(f"others can read the secret in {path}: `chmod 600 {path}`, and replace it")
    with path.open() as file:
        secret = file.read(MOST_SECRET_BYTES).strip()
    if not secret:
        raise InputError(f"{path} is empty: restore the directory {path.parent.parent} from a backup")
    return secret


def write_secret(path: Path, text: str, *, first: bool = False) -> None:
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
