"""Where the bus is and who may say what on it, as AsyncAPI has it: servers, security schemes, and the roles of a channel.

Fed by the table of roles (auth/roles.py); feeds schemas.py. Apart because it is about brokers, not about messages.
"""

from __future__ import annotations

from rover_bus.auth.rights import filled
from rover_bus.auth.roles import ROLES
from rover_bus.events.subjects import matches

SECURITY = {
    "user": {
        "type": "asymmetricEncryption",
        "description": "A user of the stack: a token (JWT) with the rights of one role, and a signature by its own key (nkey). "
        "docs/rights.md says what each role may do; x-publishers and x-subscribers of a channel come from it.",
    },
    "word": {
        "type": "apiKey",
        "in": "password",
        "description": "One word for all, of a broker that is not the stack's own.",
    },
}
SERVERS = {
    "loopback": {
        "host": "127.0.0.1:{port}",
        "protocol": "nats",
        "description": "The stack's own broker on its machine; stack.json in the state directory has the port.",
        "variables": {"port": {"description": "chosen at the first start, and kept"}},
        "security": [{"$ref": "#/components/securitySchemes/user"}],
    },
    "network": {
        "host": "{address}:{port}",
        "protocol": "nats",
        "description": "The stack's own broker beyond loopback (`rover up --bind`): TLS 1.3 from the first byte on, by the "
        "authority that stands in the credentials; its URL begins with tls://.",
        "variables": {
            "address": {"description": "of the machine, as --bind names it"},
            "port": {"description": "chosen at the first start, and kept"},
        },
        "security": [{"$ref": "#/components/securitySchemes/user"}],
    },
    "foreign": {
        "host": "{host}:{port}",
        "protocol": "nats",
        "description": "A broker that runs elsewhere (`rover up --url`), with the rights that it grants.",
        "variables": {"host": {"description": "its name or address"}, "port": {"default": "4222"}},
        "security": [
            {"$ref": "#/components/securitySchemes/user"},
            {"$ref": "#/components/securitySchemes/word"},
        ],
    },
}


def who_may(address: str) -> dict[str, list[str]]:
    """Return the roles that publish and hear at an address, as the broker grants it (auth/roles.py)."""
    subject = ".".join("x" if token.startswith("{") else token for token in address.split("."))
    granted: dict[bool, list[str]] = {False: [], True: []}
    for role in ROLES.values():
        for hears in granted:
            rights = [right for right in role.rights if (right.action == "subscribe") == hears]
            if any(matches(filled(right.subject, "x", "x", "x"), subject) for right in rights):
                granted[hears].append(role.name)
    return {"x-publishers": granted[False], "x-subscribers": granted[True]}
