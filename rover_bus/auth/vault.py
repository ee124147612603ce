"""The keys of a stack on disk, the credentials that it gives out, and what its broker must know of them.

In its directory, which only its owner can enter: `keys/NAME.nk` (seeds, made once and kept over upgrades), `keys/NAME.pub` (of
accounts: a host needs no more of them to make its members' credentials), `keys/sockets` (from which the secrets of jobs' sockets
are derived), `keys/authority.key` and `authority.pem` (its certificate authority, once it listens beyond loopback), `tenants`
(beside `default`), `runs` (of jobs whose members have rights now), `issued` and `revoked` (users.py), and
`creds/ROLE[-HOST].creds` (of its processes and people, again at each start). Fed by the stack's start and, on a host, by what
starts members; feeds the broker. A copy of the directory gives all rights: it is kept apart from backups of the store.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rover_bus.auth import accounts, tokens
from rover_bus.auth.accounts import Signer
from rover_bus.auth.key_names import (
    CONTROL,
    ROOT,
    SYSTEM,
    account_of,
    accounts_of,
    importing_from,
    members_of,
    observers_of,
    people_of,
)
from rover_bus.auth.rights import RoleName
from rover_bus.auth.roles import ASKING_ROLES, MEMBER_ROLES, ROLES, RUN_ROLES, TENANT_ROLES
from rover_bus.auth.secret_files import PART, CertificateFiles, check_whole, read_or_make, write_secret
from rover_bus.auth.store_limits import StoreLimits
from rover_bus.auth.users import GivenUser, GivenUsers
from rover_bus.events import credentials
from rover_bus.events.errors import InputError
from rover_bus.events.subjects import DEFAULT_TENANT, job_name, split_job
from rover_bus.events.subjects import name as check_name

if TYPE_CHECKING:
    from rover_bus.auth import certificates
    from rover_bus.auth.joining import HostGrant, JoinToken
    from rover_bus.events.join_requests import HostJoinRequest

BEFORE_ALL_S = 1  # when a token was made that any other of its account replaces


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

    @property
    def signs_accounts(self) -> bool:
        """Whether the operator's key is here: on the machine of the stack, and on no host that joined it."""
        return self._seed_file(ROOT).exists()

    @property
    def owns_accounts(self) -> bool:
        """Whether the keys of the stack's own accounts are here: on its machine, and in its Brain's pod."""
        return all(self._seed_file(each).exists() for each in (SYSTEM, CONTROL))

    def credentials_file(self, role: RoleName, host: str = "") -> Path:
        """Return where the credentials of a process or a person of the stack are; those of a daemon are its host's."""
        of_host = f"-{check_name(host, 'host')}" if "host" in ROLES[role].tags else ""
        return self.root / "creds" / f"{role}{of_host}.creds"

    @property
    def control_account(self) -> str:
        """The public key of the control account."""
        return self.public_key(CONTROL)

    def public_key(self, account: str) -> str:
        """Return the public key of an account (`account-control`, ...): of its seed, or as it was told where the seed is not."""
        told = self._public_file(account)
        if told.exists() and not self._seed_file(account).exists():
            return told.read_text().strip()
        return tokens.public(self._seed(account))

    def _tell_public_keys(self) -> None:
        """Write what a host needs of the accounts, beside the seeds that it must not have."""
        for account, key in self.keys_of_hosts.items():
            if not (file := self._public_file(account)).exists() or file.read_text() != key + "\n":
                write_secret(file, key + "\n")  # once: an operator comes here for each node

    # -- what the broker needs -----------------------------------------------------------------------------------------

    def server_configuration(self, directory: Path, knows_runs: bool = True) -> str:
        """Return the lines that make a nats-server enforce all this. `directory`: where it keeps accounts that it is told of.

        `knows_runs`: whether this vault is the one that the Brain notes runs in. Of another, what the server was told of stays: of
        two tokens of an account it takes the later one.
        """
        now_s = int(time.time())
        system = self.public_key(SYSTEM)
        token = tokens.operator_token(self._seed(ROOT), "rover", system, now_s)
        since_s = now_s if knows_runs else BEFORE_ALL_S
        signed = {self.public_key(each): self.account_token(each, since_s) for each in self.every_account}
        signed[system] = self.account_token(SYSTEM, now_s)
        preload = "".join(f'  {key}: "{value}"\n' for key, value in signed.items())
        return (
            f'operator: "{token}"\n'
            f"system_account: {system}\n"
            f'resolver: {{ type: full, dir: "{directory}", allow_delete: true, interval: "2m" }}\n'
            f"resolver_preload {{\n{preload}}}\n"
        )

    def account_token(self, account: str, now_s: int) -> str:
        """Return what the broker must be told so that it knows an account, by its name, as it is now. Raises InputError."""
        claims = self.claims(account)
        if claims is None:
            raise InputError(f"there is no account {account}: its tenant has been removed")
        return self.sign(account, claims, now_s)

    def sign(self, account: str, claims: dict[str, Any], now_s: int) -> str:
        """Return the token that tells the broker of these claims of an account."""
        return tokens.account_token(self._seed(ROOT), self.public_key(account), account, claims, now_s)

    def claims(self, account: str) -> dict[str, Any] | None:
        """Return what an account is now, by its name; None when its tenant has been removed."""
        if account not in (SYSTEM, *self.every_account):
            return None
        claims = self._claims(account)
        if revoked := self.users.revoked.get(account):
            claims["revocations"] = revoked
        return claims

    def _claims(self, account: str) -> dict[str, Any]:
        if account == SYSTEM:
            return accounts.system_claims()
        if account == CONTROL:
            return accounts.control_claims(self._signers(DEFAULT_TENANT), self._keys_of(self.tenants))
        tenant = next(each for each in (DEFAULT_TENANT, *self.tenants) if account in accounts_of(each))
        signers = self._signers(tenant)
        if account == observers_of(tenant):
            keys = self._keys_of(self.tenants if tenant == DEFAULT_TENANT else [tenant])
            return accounts.observers_claims(signers, tenant, keys, self.control_account)
        if account == members_of(tenant):
            of = self.public_key(account_of(tenant))
            return accounts.members_claims(signers, tenant, of, self.control_account)
        return accounts.tenant_claims(
            signers, tenant, self.control_account, StoreLimits(self.root).all.get(tenant, 0)
        )

    def _keys_of(self, tenants: Iterable[str]) -> dict[str, str]:
        return {tenant: self.public_key(account_of(tenant)) for tenant in tenants}

    # -- users that were given credentials -----------------------------------------------------------------------------

    @property
    def users(self) -> GivenUsers:
        """Who was given credentials that no process of the stack has, and which of them have no rights any more."""
        return GivenUsers(self.root)

    # -- tenants -------------------------------------------------------------------------------------------------------

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants beside `default`."""
        try:
            return tuple(
                sorted(check_name(each, "tenant") for each in json.loads((self.root / "tenants").read_text()))
            )
        except OSError:
            return ()

    def note_tenants(self, tenants: Iterable[str]) -> None:
        """Note which tenants there are, beside `default`."""
        write_secret(self.root / "tenants", json.dumps(sorted(tenants)) + "\n")

    @property
    def every_account(self) -> list[str]:
        """All accounts but the system's, the control account first, each other one after those that it imports from."""
        return importing_from([CONTROL], self.tenants)

    def end_of_accounts(self, keys: Iterable[str]) -> str:
        """Return what has the broker forget accounts, by their public keys."""
        operator = self._seed(ROOT)
        body = {"type": "generic", "accounts": sorted(keys)}
        return tokens.signed(tokens.public(operator), "rover", operator, body, int(time.time()))

    def keys_of_tenant(self, tenant: str) -> dict[str, str]:
        """Return the public keys of a tenant's accounts by the names of these: a host needs them to make credentials."""
        return {each: self.public_key(each) for each in (account_of(tenant), members_of(tenant))}

    @property
    def keys_of_hosts(self) -> dict[str, str]:
        """The public keys of all accounts that a host makes credentials for, by their names."""
        every = (DEFAULT_TENANT, *self.tenants)
        return {name: key for tenant in every for name, key in self.keys_of_tenant(tenant).items()}

    def learn_keys(self, keys: Mapping[str, str]) -> None:
        """Note the public keys of accounts whose seeds are elsewhere."""
        for account, key in keys.items():
            if not self._seed_file(account).exists():
                write_secret(self._public_file(check_name(account, "account")), key + "\n")

    def end_of_tenant(self, tenant: str) -> str:
        """Return what has the broker forget a tenant's accounts; no key of theirs is left."""
        token = self.end_of_accounts(self.public_key(each) for each in accounts_of(tenant))
        for account in accounts_of(tenant):
            self._seed_file(account).unlink(missing_ok=True)
            self._public_file(account).unlink(missing_ok=True)
        return token

    def person_credentials(self, role: RoleName, tenant: str) -> str:
        """Return the text that lets a person, or a program for people, do what a role may do for a tenant."""
        made = self._user(role, f"{tenant}/{role}", self._person_seed(role, tenant), {}, tenant)
        self.users.note(GivenUser(made.user, self._account_of(role, tenant), role, tenant, int(time.time())))
        return credentials.write(replace(made, tenant=tenant))

    def owner_credentials(self, tenant: str = DEFAULT_TENANT) -> str:
        """Return what may do anything in an account: it makes and removes tenants' streams. Never written down."""
        body = {"type": "user", "pub": {}, "sub": {}, **tokens.NO_USER_LIMITS}
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        account = self._seed(account_of(tenant))
        token = tokens.signed(tokens.public(seed), "owner", account, body, int(time.time()))
        return credentials.write(credentials.Credential(token, seed, authority=self.authority))

    def person_key(self, role: RoleName, tenant: str) -> str:
        """Return what signs a tenant's people: of the seed, or as it was told where only a part of the keys is."""
        told = self._public_file(people_of(tenant, role))
        return told.read_text().strip() if told.exists() else tokens.public(self._person_seed(role, tenant))

    def _person_seed(self, role: RoleName, tenant: str) -> str:
        derived = hmac.new(self._seed(f"role-{role}").encode(), f"tenant/{tenant}".encode(), hashlib.sha256)
        return tokens.new_seed("account", derived.digest())

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

    def certificate(
        self, address: str, names: Sequence[str] = (), served: Literal["broker", "page"] = "broker"
    ) -> CertificateFiles:
        """Return what a broker, or a page, shows at an address, made again when there is none or a third of its time is left.

        `names`: what it is called besides, by those who do not know its address.
        """
        from rover_bus.auth import certificates

        now = certificates.now_utc()
        authority = self._make_authority(now)
        files = CertificateFiles(
            self.root / "certificates" / f"{served}.pem", self.root / "certificates" / f"{served}.key"
        )
        with suppress(OSError):
            former = certificates.Pair(files.certificate.read_text(), files.key.read_text())
            if certificates.is_usable(former, authority, [address, *names], now):
                return files
        made = certificates.make_served(authority, [address, *names], now)
        write_secret(files.key, made.key)
        write_secret(files.certificate, made.certificate)
        return files

    def _make_authority(self, now: datetime) -> certificates.Pair:
        from rover_bus.auth import certificates

        key, certificate = self.root / "keys" / "authority.key", self.authority_file
        if not key.exists():
            check_whole(key)
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

    def admit(self, runs: Iterable[RunOfJob], every: bool = False) -> list[str]:
        """Note which runs there are; return the changed accounts to tell the broker in this order, or `every` account: what imports
        from all tenants comes last. What is not named has no rights any more.
        """
        former, wanted = self.runs, frozenset(runs)
        write_secret(self.root / "runs", json.dumps(sorted(wanted)) + "\n")
        known = {DEFAULT_TENANT, *self.tenants}
        changed = known if every else {split_job(run.job)[0] for run in former ^ wanted} & known
        return [
            each
            for tenant in sorted(changed, key=lambda each: (each == DEFAULT_TENANT, each))
            for each in (accounts_of(tenant) if every else accounts_of(tenant)[:2])
        ]

    def system_credentials(self) -> str:
        """Return what may tell the broker of accounts."""
        body = {"type": "user", "pub": {}, "sub": {}, **tokens.NO_USER_LIMITS}
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        token = tokens.signed(tokens.public(seed), "registrar", self._seed(SYSTEM), body, int(time.time()))
        return credentials.write(credentials.Credential(token, seed, authority=self.authority))

    def _signers(self, tenant: str) -> list[Signer]:
        """Return the keys that sign for a tenant: of its runs, and of its people; of `default`, of the stack's own processes."""
        of_runs = [
            Signer(tokens.public(self._run_seed(role, run)), role, split_job(run.job)[1], tenant)
            for run in sorted(self.runs)
            if split_job(run.job)[0] == tenant
            for role in RUN_ROLES
        ]
        if tenant != DEFAULT_TENANT:
            keys = {role: self.person_key(role, tenant) for role in TENANT_ROLES}
        else:
            own = [role for role in ROLES if role not in (*RUN_ROLES, *TENANT_ROLES)]
            keys = {role: self.public_key(f"role-{role}") for role in own}
        return [*of_runs, *(Signer(key, role, tenant=tenant) for role, key in keys.items())]

    def _run_seed(self, role: RoleName, run: RunOfJob) -> str:
        """Return the key that signs the members of one run: each daemon derives it, and no key is sent anywhere."""
        derived = hmac.new(
            self._seed(f"role-{role}").encode(), f"{run.job}/{run.uid}".encode(), hashlib.sha256
        )
        return tokens.new_seed("account", derived.digest())

    # -- credentials ---------------------------------------------------------------------------------------------------

    def write_credentials(self, host: str, only: RoleName | None = None) -> None:
        """Write those of the stack's own processes on a host, and of its people; `only`: of one of these roles."""
        self._tell_public_keys()
        whole = not (self.root / "keys" / PART).exists()
        for role in (each for each in ROLES if whole or self._seed_file(f"role-{each}").exists()):
            if role not in (*RUN_ROLES, *TENANT_ROLES, *ASKING_ROLES) and only in (None, role):
                tags = {"host": host} if "host" in ROLES[role].tags else {}
                made = self._user(role, role, self._seed(f"role-{role}"), tags)
                if not made.only_looks:
                    made = replace(made, messages=self.message_secret("control"))
                write_secret(self.credentials_file(role, host), credentials.write(made))

    def member_credentials(self, role: RoleName, job: str, uid: str, member: str, host: str) -> str:
        """Return the text that lets one member of one run of a job do what its role may do for that job.

        `job`: as the control account calls it. Raises InputError for a tenant whose accounts are not known here.
        """
        run, tenant = RunOfJob(job_name(job), check_name(uid, "uid")), split_job(job)[0]
        tags = {"host": check_name(host, "host")}
        made = self._user(role, f"{job}/{member}", self._run_seed(role, run), tags, tenant)
        made = replace(made, sockets=self.job_secret(job, uid))
        if role == "master":  # it looks up settings of the control account
            made = replace(made, messages=self.message_secret(f"{job}/{uid}"), tenant=tenant)
        if role == "sidecar":
            made = replace(made, messages=self.message_secret(f"{job}/{uid}/{member}"))
        return credentials.write(made)

    def message_secret(self, of: str) -> str:
        """Return what makes ids of messages unguessable: of the stack's own processes, or of the masters of one run."""
        return hmac.new(self.host_secret, f"messages/{of}".encode(), hashlib.sha256).hexdigest()

    @property
    def cluster_secret(self) -> str:
        """What the servers of a broker cluster demand of one another: no host that joined can know it."""
        return hmac.new(self._seed(ROOT).encode(), b"cluster", hashlib.sha256).hexdigest()

    def job_secret(self, job: str, uid: str) -> str:
        """Return what servers and workers of one run of a job demand of one another."""
        return hmac.new(self.host_secret, f"{job}/{uid}".encode(), hashlib.sha256).hexdigest()

    @property
    def host_secret(self) -> bytes:
        """What daemons demand of one another when they copy parts of checkpoints."""
        return read_or_make(self.root / "keys" / "sockets", lambda: secrets.token_hex(32)).encode()

    def _user(
        self,
        role: RoleName,
        name: str,
        signing_seed: str,
        tags: dict[str, str],
        tenant: str = DEFAULT_TENANT,
    ) -> credentials.Credential:
        seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        account = self._account_of(role, tenant)
        token = tokens.user_token(signing_seed, account, tokens.public(seed), name, tags, int(time.time()))
        only_looks = ROLES[role].account == "observers"
        return credentials.Credential(token, seed, authority=self.authority, only_looks=only_looks)

    def _account_of(self, role: RoleName, tenant: str = DEFAULT_TENANT) -> str:
        """Return the public key of the account that users of a role stand in. Raises InputError for a tenant that is not known."""
        of = {"members": members_of, "observers": observers_of}.get(ROLES[role].account, account_of)(tenant)
        if tenant not in (DEFAULT_TENANT, *self.tenants) and not self._public_file(of).exists():
            raise InputError(f"there is no tenant {tenant!r}: `rover auth list` shows those that there are")
        return self.public_key(of)

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
        self.users.note(GivenUser(request.user, self._account_of("daemon"), "daemon", host, int(time.time())))
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
            accounts=self.keys_of_hosts,
            seeds={f"role-{role}": self._seed(f"role-{role}") for role in MEMBER_ROLES},
            sockets=self.host_secret.decode(),
            daemon_token=daemon,
        )

    # -- seeds ---------------------------------------------------------------------------------------------------------

    def _seed_file(self, name: str) -> Path:
        return self.root / "keys" / f"{name}.nk"

    def _public_file(self, account: str) -> Path:
        return self.root / "keys" / f"{account}.pub"

    def make_keys(self) -> None:
        """Make every key that is else made when it is first asked for: a copy of them is whole then."""
        from rover_bus.auth import certificates

        for each in (ROOT, SYSTEM, *self.every_account, *(f"role-{role}" for role in ROLES)):
            self._seed(each)
        _ = self.host_secret
        self._make_authority(certificates.now_utc())

    def _seed(self, name: str) -> str:
        kind: tokens.Kind = "operator" if name == ROOT else "account"
        return read_or_make(
            self._seed_file(name), lambda: tokens.new_seed(kind, secrets.token_bytes(tokens.SEED_BYTES))
        )
