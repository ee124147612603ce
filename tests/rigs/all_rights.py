"""A user whom the broker of a stack refuses nothing: for tests that put there what no role of ours may (docs/design/0047)."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from rover_bus.auth import tokens
from rover_bus.cli.home import Home
from rover_bus.events import credentials
from rover_bus.events.nats_bus import NatsBus


def credential(home: Home) -> str:
    """Return what the control account itself signs: without a scope, and so without a limit."""
    seed = (home.auth / "keys" / "account-control.nk").read_text().strip()
    user = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
    account = tokens.public(seed)
    body = {"type": "user", "issuer_account": account, "pub": {}, "sub": {}, **tokens.NO_USER_LIMITS}
    token = tokens.signed(tokens.public(user), "test", seed, body, int(time.time()))
    return credentials.write(credentials.Credential(token, user))


async def connect(directory: str | Path, name: str = "test") -> NatsBus:
    """Connect to the stack that runs in a state directory."""
    home = Home.find(directory)
    record = home.read_record()
    return await NatsBus.connect(record.url, secret=credential(home.of_running()), name=name)
