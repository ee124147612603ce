"""How a cause is written: every fact names what led to it (design §2.4), and `rover story` walks it.

Used by deciders, which write causes, and by `cli/views/stories.py`, which follows them; apart so that both speak one grammar:

    ROVER_FACTS:<sequence>          a stored fact: what a person, a daemon or another service published
    <tenant>/ROVER_FACTS:<sequence> the same, of another account than the one where this is read (`default`: the control account)
    job:<uid>                       the submission of the job
    <member>[/<request>]            a process of the job: what it asked or reported (worker-3.1/join, worker-3.1#17)
    host:<host>                     a host's daemon
    term:<n>  plan:<n>  cut:<n>  rollout:<n>  group:<n>  lost:<member>  straggler:<member>
                                    the fact of the same job that says so (master.elected, plan.proposed, ...)
    timer:<name> of <cause>         time passed since: what was waited for, and what it was that began the wait

Symbolic names are used where a decider cannot know which number its own fact will bear. Facts of a tenant are numbered in its own
stream, where its people read them; the control account's services read copies, and name what caused something by the first number.
"""

from __future__ import annotations

import re

from rover_bus.events.identity import Member
from rover_bus.events.subjects import DEFAULT_TENANT

_MEMBER = re.compile(r"(?:master|worker|ps)-\d+\.\d+")
_FACT = re.compile(r"(?:(?P<tenant>[^/\s]+)/)?(?P<fact>ROVER_FACTS:\d+)")
HIDDEN = "another-tenant"  # what a tenant reads of a cause that is another's
_TIMER = re.compile(r"timer:(?P<name>[^:]+) of (?P<cause>\S+)")


def fact(stream_and_sequence: str, tenant: str = "") -> str:
    """Return a stored fact as a cause in the control account. `tenant`: whose stream numbers it, "": its own."""
    return f"{tenant}/{stream_and_sequence}" if tenant else stream_and_sequence


def for_tenant(cause: str, tenant: str) -> str:
    """Return a cause of the control account as a tenant's account has it."""

    def own(found: re.Match[str]) -> str:
        if found["tenant"] is None:
            return f"{DEFAULT_TENANT}/{found['fact']}"
        return found["fact"] if found["tenant"] == tenant else HIDDEN

    return _FACT.sub(own, cause)


def for_control(cause: str, tenant: str) -> str:
    """Return a cause of a tenant's account as the control account has it."""

    def whole(found: re.Match[str]) -> str:
        if found["tenant"] is None:
            return f"{tenant}/{found['fact']}"
        return found["fact"] if found["tenant"] == DEFAULT_TENANT else found[0]

    return _FACT.sub(whole, cause)


def timer(name: str, of: str) -> str:
    """Return the cause of what follows because time passed since `of`."""
    return f"timer:{name} of {of}"


def request(member: Member, what: str | int) -> str:
    """Return the cause of what follows from a member's request: its method, or the number of its lease request."""
    return f"{member}#{what}" if isinstance(what, int) else f"{member}/{what}"


def job(uid: str) -> str:
    return f"job:{uid}"


def host(name: str) -> str:
    return f"host:{name}"


def term(number: int) -> str:
    return f"term:{number}"


def plan(number: int) -> str:
    return f"plan:{number}"


def cut(number: int) -> str:
    return f"cut:{number}"


def rollout(number: int) -> str:
    return f"rollout:{number}"


def group(number: int) -> str:
    return f"group:{number}"


def lost(member: Member) -> str:
    return f"lost:{member}"


def straggler(member: Member) -> str:
    return f"straggler:{member}"


def named(cause: str) -> str:
    """Return the name of the fact that a cause points at: without the timer, and without what a process asked."""
    found = _TIMER.fullmatch(cause)
    cause = found["cause"] if found else cause
    member = _MEMBER.match(cause)
    return member.group() if member else cause


def waited_for(cause: str) -> str:
    """Return the name of the timer that a cause states, "" when it states none."""
    found = _TIMER.fullmatch(cause)
    return found["name"] if found else ""
