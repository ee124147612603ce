"""Write docs/rights.md from the table of roles (rover_bus/auth/roles.py); `--check` says whether it is up to date.

python docs/make_rights.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rover_bus.auth.rights import ANSWER_S, Right, Role, filled
from rover_bus.auth.roles import ASKING_ROLES, EVERY_STREAM, ROLES
from rover_bus.events.nats_jetstream import API
from rover_bus.events.streams import SETTINGS, TIMELINE_KEY
from rover_bus.events.subjects import CONTROL, matches

OTHER_ACCOUNTS = ("tenant.", CONTROL)
PAGE = Path(__file__).parent / "rights.md"
HEAD = """\
# Who may do what on the bus

Written by `make docs` from `rover_bus/auth/roles.py`, from which the broker's rights come too; every cell is tested against a
real nats-server (`tests/broker/auth`). What no line gives is denied. Why it is so: [0047](design/0047-who-may-do-what.md).

Each process is a user of NATS with the rights of one role. `<job>`, `<host>` and `<user>` are its own: its credentials name
them, and the broker fills them in. Every user may listen on an inbox of its own (`_INBOX.<user>.>`) and on no other. The account
`tenant` is a tenant's own; of the tenant `default` it is the control account ([0050](design/0050-tenants.md)). Members stand in an
account that holds no stream, and so do observers and viewers in theirs; what they use of their tenant's account is exported to them
subject by subject, and what a stream answers comes back there and no further. What stands behind
`tenant.*.` lies in another account: so the control account's users reach that of every tenant.
"""


OTHERS = """\
## A broker of another owner

`rover up --url` on a NATS that is there already: one account with JetStream, and one user for all processes and people of the
stack. So nothing of the above tells them apart: there are no tenants, no rights by role, and no revocation by `rover auth`
([0082](design/0082-a-broker-of-another-owner.md)). All that its owner has to grant is this, as the template of a scoped signing
key has it (`nsc edit signing-key --role`): a user's own token with so many rights is longer than the line that a server takes.
Streams are named `ROVER_...`, and nothing else of the account is touched. The lines from the first with `SNAPSHOT` on are for
`rover backup` and `rover restore` alone. A test runs a stack with these rights and no others.
"""
ANSWERS = {"max": 1, "ttl": ANSWER_S * 1_000_000_000}


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is as it should be."""
    text = "\n".join(
        [HEAD, *(line for role in ROLES.values() for line in section(role)), OTHERS, *of_one_user(), ""]
    )
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.stderr.write("docs/rights.md has drifted: run `make docs` and commit\n")
        return 1
    return 0


def section(role: Role) -> Iterator[str]:
    """Yield the lines of one role."""
    answers = "; may answer what it is asked" if role.answers else ""
    yield f"## {role.name}\n"
    yield f"In the account `{role.account}`: {role.about}{answers}.\n"
    yield "| Action | Subjects | What for |\n|---|---|---|"
    for (action, purpose), rights in groupby(role.rights, key=lambda right: (right.action, right.purpose)):
        yield f"| {action} | {', '.join(_folded(list(rights)))} | {purpose} |"
    yield ""


def of_one_user() -> Iterator[str]:
    """Yield what one user may do that is all processes of a stack: what any role has in an account that is all accounts."""
    of_one = [
        (right.action == "subscribe", filled(right.subject, "*", "*", "*"))
        for role in ROLES.values()
        if role.name not in ASKING_ROLES
        for right in role.rights
    ]
    hears = _widest(
        {"_INBOX.>", *(subject for heard, subject in of_one if heard)}
    )  # what listens for tenants finds none
    inside = [subject for heard, subject in of_one if not heard and not subject.startswith(OTHER_ACCOUNTS)]
    says = _widest({"_INBOX.>", "rover.>", *inside})
    saved = [
        f"{API}.STREAM.{verb}.{stream}"
        for verb in ("SNAPSHOT", "RESTORE", "DELETE")
        for stream in EVERY_STREAM
    ]
    saved += ["$JS.SNAPSHOT.ACK.>", "$JS.SNAPSHOT.RESTORE.>", f"$KV.{SETTINGS}.{TIMELINE_KEY}"]
    rights = {"sub": {"allow": hears}, "resp": ANSWERS, "pub": {"allow": [*says, *saved]}}
    yield from ["```json", json.dumps(rights, indent=1), "```"]


def _widest(given: set[str]) -> list[str]:
    """Return subjects without those that another one stands for."""
    return sorted(each for each in given if not any(matches(wide, each) for wide in given - {each}))


def _folded(rights: list[Right]) -> Iterator[str]:
    """Yield subjects, those that differ in their last words only as one."""
    named = [filled(right.subject, "<job>", "<host>", "<user>") for right in rights]
    for beginning, group in groupby(named, key=_beginning):
        ends = [subject.removeprefix(beginning) for subject in group]
        yield f"`{beginning}{ends[0] if len(ends) == 1 else '{' + ', '.join(ends) + '}'}`"


def _beginning(subject: str) -> str:
    kept = 2 if subject.startswith("$JS") else 3
    return ".".join(subject.split(".")[:kept]) + "." if subject.count(".") >= kept else subject


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
