"""What was touched between two saves, for what persists or mirrors only the difference.

Written by the store next to its slots, one small file a save; read by the daemon, which folds the saves since the
cut it persisted last into one delta. A missing link means a full copy, never a wrong delta. It is apart because a
slot's dirty set is the writer's own matter, while this history belongs to readers in other processes that are
slower than the writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from rover_bus.flash.dirty import Ids
from rover_bus.flash.places import numbered, touched_path

KEEP_SAVES = 64
DIGEST_BYTES = 8


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    """Ids touched between `previous_save` and `save_number`: little-endian uint32 or uint64 in `lists`.

    `rows` says which list is that of an array; arrays not named changed whole.
    """

    save_number: int
    previous_save: int
    item_bytes: int
    lists: list[bytes]
    rows: dict[str, int]

    def ids(self) -> dict[str, Ids]:
        """Ids by array. Raises IndexError for a link that was not written by us."""
        lists = [np.frombuffer(raw, f"<u{self.item_bytes}").astype(np.int64) for raw in self.lists]
        return {name: lists[number] for name, number in self.rows.items()}


# Made at import, as all decoders of what threads read: msgspec learns a type at its first use, and two threads that use it first at
# once crash the process (`decode(body, type=...)`, seen with msgspec 0.22).
JOURNALS = msgspec.msgpack.Decoder(Touched)


def write_touched(
    directory: Path, part: str, save_number: int, previous_save: int, touched: Mapping[str, Ids]
) -> None:
    """Add a link. Its cut is sealed: as long as the link is missing, or cut short, a reader copies the whole. Nothing touched,
    nothing known: no link.
    """
    touched_path(directory, part, save_number - KEEP_SAVES).unlink(missing_ok=True)
    if not touched:
        return
    distinct = {id(ids): ids for ids in touched.values()}
    large = any(len(ids) and ids.max() >> 32 for ids in distinct.values())
    place = {key: number for number, key in enumerate(distinct)}
    link = Touched(
        save_number=save_number,
        previous_save=previous_save,
        item_bytes=8 if large else 4,
        lists=[ids.astype("<u8" if large else "<u4").tobytes() for ids in distinct.values()],
        rows={name: place[id(ids)] for name, ids in touched.items()},
    )
    body = msgspec.msgpack.encode(link)
    touched_path(directory, part, save_number).write_bytes(_digest(body) + body)


def _digest(body: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(body).to_bytes(DIGEST_BYTES, "little")


def forget_after(directory: Path, part: str, save_number: int) -> None:
    """Remove links of saves that come: a dead writer used their numbers for other cuts, which are not there any more."""
    for number, path in numbered(directory, part, "touched"):
        if number > save_number:
            path.unlink(missing_ok=True)


def read_touched(directory: Path, part: str, save_number: int, since_save: int) -> dict[str, Ids] | None:
    """Every row touched after `since_save` up to `save_number`, ids sorted and distinct; None if a link is missing.

    An array is in the result only if all links track it.
    """
    lists: dict[str, list[Ids]] | None = None
    while save_number > since_save:
        link = _read(touched_path(directory, part, save_number))
        if link is None or link.previous_save >= save_number:
            return None
        rows = link.ids()
        before = lists if lists is not None else {name: [] for name in rows}
        lists = {name: [*before[name], rows[name]] for name in before.keys() & rows.keys()}
        save_number = link.previous_save
    if save_number != since_save or lists is None:
        return None
    return {name: np.unique(np.concatenate(parts)) for name, parts in sorted(lists.items())}


def _read(path: Path) -> Touched | None:
    """A link as it was written; one that is cut short, or damaged, is missing."""
    try:
        raw = path.read_bytes()
        body = raw[DIGEST_BYTES:]
        return JOURNALS.decode(body) if raw[:DIGEST_BYTES] == _digest(body) else None
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
