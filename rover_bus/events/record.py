"""The base of what a master decides; apart so that records may be in several files and still be one language (log.py)."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Base of everything a master decides. Trees without cycles, made by the million: the collector need not look."""


class Caused(Record, frozen=True, kw_only=True):
    """A record that is not the answer to a lease call: `cause` is the id of the input that led to it."""

    cause: str = ""
