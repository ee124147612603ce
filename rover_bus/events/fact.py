"""What every fact has: a type tag, a cause, the asker; and, when it comes out of a log, its place there (protocol P18).

The bases of facts.py, its neighbours (data_, plan_, host_ and checkpoint_facts.py), and of records that a log holds
without publishing them (log.py, the Brain's); apart so that these may be many files and still be one language.
"""

from __future__ import annotations

import msgspec

from rover_bus.events.invariants import Checked

Position = tuple[int, int]


class Fact(Checked, frozen=True, kw_only=True, tag_field="type"):
    """Base of all facts. `cause` is the id of the event that caused this one; `by` is the person or service that asked."""

    cause: str = ""
    by: str = ""

    @classmethod
    def tag(cls) -> str:
        """Return the type tag, for example `plan.applied.v1`."""
        return str(cls.__struct_config__.tag)

    @classmethod
    def kind(cls) -> str:
        """Return `<noun>.<verb>`: the last two tokens of its subject (the last one for hosts)."""
        return cls.tag().rsplit(".", 1)[0]


class JobFact(Fact, frozen=True, kw_only=True):
    """A fact about one job. `position` is set on what comes out of the job's log.

    The log holds it without `job` and `position`: its subject and its sequence say both, and they are added when it leaves.
    """

    job: str = ""
    position: Position | None = None


class MasterFact(JobFact, frozen=True, kw_only=True):
    """A fact that the job's master decided: a record of the job's log, or made of one (log.TRANSLATED)."""


class Unpublished(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Base of records that a log alone holds. Trees without cycles, made by the million: the collector need not look."""


class Caused(Unpublished, frozen=True, kw_only=True):
    """A record that is not the answer to a lease call: `cause` is the id of the input that led to it."""

    cause: str = ""


# What a decider decides: a fact is published as it is, the rest stays in its log.
Record = Unpublished | Fact
