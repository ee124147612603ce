"""What an agent of a node shows and gets: the pass that all of them share, an application that proves a pod, a grant for one host.

The pass may ask and do nothing else. What is asked is sealed to the operators, what is granted to the asker; who asks is for the
API server to say (kube/agents.py). Pure but for the keys, which are random. Why: docs/design/0062.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from rover_bus.auth import tokens
from rover_bus.auth.vault import Vault
from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied, InputError
from rover_bus.events.subjects import name as check_name

MOST_PASS_BYTES = 64 << 10
MOST_APPLICATION_BYTES = 16 << 10
VALID_S = 1800  # of a grant; renewed after a third of it
Text = Annotated[str, msgspec.Meta(max_length=8192)]
Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class AgentPass(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.agent_pass.v1"):
    """What agents of all nodes share. `user`: the text of a credential that may ask; `seal`: what applications are sealed to."""

    user: Text
    seal: Key


class AgentApplication(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.agent.v1"):
    """`token`: of a pod; `user`: the public key that the agent will sign by; `seal`: the key that the answer is sealed to."""

    token: Text
    user: Text
    seal: Key


class AgentGrant(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.agent_grant.v1"):
    """What an agent may do from now on. `host`: whose agent it is; `parts`: the secret by which agents copy parts from one another;
    `messages`: makes the ids of its messages unguessable.
    """

    host: Text
    token: Text
    parts: Text
    messages: Text


def write_pass(made: AgentPass) -> str:
    """Return the text of a file that holds a pass."""
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def read_pass(path: Path) -> AgentPass:
    """Return the pass in a file, which a pod has mounted. Raises InputError for what is none."""
    try:
        with path.open("rb") as file:
            return parse_pass(file.read(MOST_PASS_BYTES))
    except OSError as error:
        raise InputError(f"cannot read the agents' pass in {path}: {error.strerror}") from None


def parse_pass(text: bytes) -> AgentPass:
    """Return what `write_pass` wrote. Raises InputError."""
    try:
        return msgspec.json.decode(text, type=AgentPass)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(
            "this is no pass of agents: `rover kube prepare --agents SECRET` makes one"
        ) from None


class AgentKeys:
    """The keys that one agent makes for itself, for as long as its process runs."""

    def __init__(self, shared: AgentPass) -> None:
        self._shared = shared
        self._seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        self._private = PrivateKey.generate()

    def apply(self, pod_token: str) -> bytes:
        """Return what to ask, for the operators alone to read."""
        said = AgentApplication(
            token=pod_token, user=tokens.public(self._seed), seal=bytes(self._private.public_key)
        )
        return bytes(SealedBox(PublicKey(self._shared.seal)).encrypt(msgspec.msgpack.encode(said)))

    def unseal(self, sealed: bytes) -> AgentGrant:
        """Return what was granted. Raises AccessDenied for what was not sealed for us."""
        try:
            return msgspec.msgpack.decode(SealedBox(self._private).decrypt(sealed), type=AgentGrant)
        except (CryptoError, msgspec.DecodeError, ValueError):
            raise AccessDenied(
                "the answer to this agent cannot be read: it was sealed for another one"
            ) from None

    def credential(self, grant: AgentGrant) -> credentials.Credential:
        """Return what the agent shows from now on."""
        asking = credentials.read(self._shared.user)
        return credentials.Credential(
            grant.token,
            self._seed,
            sockets=grant.parts,
            authority=asking.authority if asking else "",
            messages=grant.messages,
        )


@dataclass(frozen=True, slots=True)
class AgentVault(Vault):
    """A stack's keys, as they make the pass of agents and grant them their rights."""

    @property
    def shared_pass(self) -> AgentPass:
        """The pass. Each call makes another user: the one that pods have is kept where it was written first."""
        made = self._user("applicant", "applicant", self._seed("role-applicant"), {})
        return AgentPass(user=credentials.write(made), seal=bytes(self._key.public_key))

    def read(self, sealed: bytes) -> AgentApplication:
        """Return what an agent asks. Raises InputError for what was not sealed for this stack."""
        try:
            said = msgspec.msgpack.decode(SealedBox(self._key).decrypt(sealed), type=AgentApplication)
        except (CryptoError, msgspec.DecodeError, ValueError, TypeError):
            raise InputError(
                "the application of an agent cannot be read: it has the pass of another stack"
            ) from None
        tokens.check_user(said.user)
        return said

    def grant_agent(self, asked: AgentApplication, host: str, valid_s: int = VALID_S) -> bytes:
        """Return the rights of a host's agent, for the asker alone to read. Raises InputError for a key that is none."""
        now_s = int(time.time())
        token = tokens.user_token(
            self._seed("role-agent"),
            self._account_of("agent"),
            asked.user,
            "agent",
            {"host": check_name(host, "host")},
            now_s,
            expires_s=now_s + valid_s,
        )
        grant = AgentGrant(
            host=host,
            token=token,
            parts=parts_secret(self).decode(),
            messages=self.message_secret(f"agent/{host}"),
        )
        try:
            return bytes(SealedBox(PublicKey(asked.seal)).encrypt(msgspec.msgpack.encode(grant)))
        except (CryptoError, ValueError, TypeError):
            raise InputError("the key to seal the answer to is none: take an agent of this release") from None

    @property
    def _key(self) -> PrivateKey:
        """What opens applications: each operator derives it, and no key is sent anywhere."""
        return PrivateKey(hmac.new(self._seed("role-registrar").encode(), b"seal", hashlib.sha256).digest())


def parts_secret(vault: Vault) -> bytes:
    """Return the secret by which agents and daemons of hosts copy parts of checkpoints from one another, and do nothing else."""
    return hmac.new(vault.host_secret, b"parts", hashlib.sha256).hexdigest().encode()
