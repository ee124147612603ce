"""What a process shows to a broker: a user of NATS (a signed token and the seed that proves it), or one word for a foreign broker.

Written by rover_bus.auth, by a file (`ROVER_SECRET_FILE`, the form of `nats --creds`) or by the environment (`ROVER_CREDENTIAL`);
read by nats_client.py, and by clients and servers for the secret of their job's sockets. Apart from auth because each process
reads one, and only the stack makes one. Nothing here is ever printed: reprs hold no secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rover_bus.events.errors import InputError

VARIABLE = "ROVER_CREDENTIAL"
DIRECTORY, RENEWED = (
    "ROVER_MEMBER_DIR",
    "credential",
)  # of a member, and its file of a credential that replaces its first
INBOX = "_INBOX"
MOST_BYTES = 64 << 10  # of a credential: what is larger is none
_TOKEN, _SEED, _SOCKETS = "NATS USER JWT", "USER NKEY SEED", "ROVER SOCKET SECRET"
_AUTHORITY, _TENANT, _MESSAGES = "ROVER STACK AUTHORITY", "ROVER TENANT", "ROVER MESSAGE SECRET"
_LOOKS = "ROVER ONLY LOOKS"
_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s*(\S+)\s*-{3,}END \1-{3,}")


@dataclass(frozen=True, slots=True)
class Credential:
    """One user. `token`: its rights as its account signed them; `seed`: of its key; `sockets`: the secret of its job's sockets;
    `authority`: the certificate that its broker's is signed by, base64, "" where nothing is encrypted. `tenant`: whose account it
    is in, "" for the control account; the broker goes by the token alone. `messages`: a secret by which ids of its messages
    cannot be guessed, "" of a user whose facts bear random ids. `only_looks`: it reads without consumers, which it may not make.
    """

    token: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    sockets: str = field(default="", repr=False)
    authority: str = ""
    tenant: str = ""
    messages: str = field(default="", repr=False)
    only_looks: bool = False

    @property
    def user(self) -> str:
        """The public key of the user. Raises InputError for a token that is none."""
        return _read_subject(self.token)

    @property
    def account(self) -> str:
        """The public key of the account that it is in, "" where it does not say."""
        said = read_claims(self.token).get("nats", {})
        account = said.get("issuer_account", "") if isinstance(said, dict) else ""
        return account if isinstance(account, str) else ""

    @property
    def expires_s(self) -> int:
        """When its rights end, in seconds since 1970; 0: it does not say."""
        end = read_claims(self.token).get("exp", 0)
        return end if isinstance(end, int) else 0

    @property
    def inbox(self) -> str:
        """Where its answers come: no other user may listen there."""
        return f"{INBOX}.{self.user}"

    def message_id(self, name: str) -> str:
        """Return the id under which a stream stores what has this name: the same each time, and not to be guessed by others."""
        if not self.messages:
            return name
        return hmac.new(self.messages.encode(), name.encode(), hashlib.sha256).hexdigest()[:32]

    def sign(self, nonce: str) -> bytes:
        """Return what proves to a broker that we hold the seed. Raises InputError for a seed that is none."""
        import nkeys  # 10 ms, and only a process that connects needs it

        try:
            return base64.b64encode(nkeys.from_seed(bytearray(self.seed.encode())).sign(nonce.encode()))
        except (nkeys.NkeysError, ValueError) as error:
            raise InputError(f"the credentials hold no usable seed ({type(error).__name__})") from None


def write(credential: Credential) -> str:
    """Return the text of a credential: what `nats --creds` reads, and behind it what is ours."""
    blocks = [_block(_TOKEN, credential.token), _block(_SEED, credential.seed)]
    if credential.sockets:
        blocks.append(_block(_SOCKETS, credential.sockets))
    if credential.authority:
        blocks.append(_block(_AUTHORITY, credential.authority))
    if credential.tenant:
        blocks.append(_block(_TENANT, credential.tenant))
    if credential.messages:
        blocks.append(_block(_MESSAGES, credential.messages))
    if credential.only_looks:
        blocks.append(_block(_LOOKS, "yes"))
    return "\n".join(blocks)


def read(text: str) -> Credential | None:
    """Return the credential that a text holds; None for any other text: one word for a broker that asks for a word."""
    if len(text) > MOST_BYTES:
        return None
    found = dict(_BLOCK.findall(text))
    if _TOKEN not in found or _SEED not in found:
        return None
    sockets, authority, tenant, messages = (
        found.get(each, "") for each in (_SOCKETS, _AUTHORITY, _TENANT, _MESSAGES)
    )
    return Credential(
        found[_TOKEN], found[_SEED], sockets, authority, tenant, messages, only_looks=_LOOKS in found
    )


def of_process(variables: Mapping[str, str], named_file: str) -> str:
    """Return what a process shows to its broker: its own credential, else what the named file holds, else "". Raises InputError."""
    own = renewed(variables) or variables.get(VARIABLE, "")
    return own or (read_file(Path(named_file)) if named_file else "")


def renewed(variables: Mapping[str, str]) -> str:
    """Return the credential that a member was given after its start, "" where it was given none. Raises InputError."""
    if not variables.get(VARIABLE) or not variables.get(DIRECTORY):
        return ""
    path = Path(variables[DIRECTORY], RENEWED)
    return read_file(path) if path.exists() else ""


def read_file(path: Path) -> str:
    """Return what a file holds: credentials, or one word. Raises InputError, also when others can read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise InputError(f"others can read the secret in {path}: `chmod 600 {path}`, and replace it")
        with path.open() as file:
            text = file.read(MOST_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the secret in {path}: {error}") from None
    if read(text) is None and (not text.isprintable() or not text or set(text) & set("\"'\\ ")):
        raise InputError(
            f"{path} holds no credentials, and no single word either: take the file that the stack made"
        )
    return text


def of_sockets(variables: Mapping[str, str], named_file: str) -> bytes:
    """Return the secret that servers and workers of one job share now: the credential's, or one word that serves for all.

    Raises InputError.
    """
    text = of_process(variables, named_file)
    credential = read(text)
    return (text if credential is None else credential.sockets).encode()


def _block(name: str, text: str) -> str:
    return f"-----BEGIN {name}-----\n{text}\n------END {name}------\n"


def _read_subject(token: str) -> str:
    subject = read_claims(token).get("sub", "")
    if not isinstance(subject, str) or not re.fullmatch(r"U[A-Z2-7]{55}", subject):
        raise InputError("the credentials hold no token of a NATS user: take those that the stack made")
    return subject


def read_claims(token: str) -> dict[str, Any]:
    """Return what a token says, unchecked: the broker checks it. Empty for a text that is no token."""
    try:
        claims = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except (IndexError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
