"""Staged cuts that were checked against their digests: the only way to go back to what lies in shared memory (protocol P12).

Fed with the directories of parts; feeds restores, of the store and of servers, and everything that hands a part on. Apart from
`staged`, which maps and believes: what makes digests, and what checks them on the way to a disk, rests on that.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rover_bus.flash.digests import verify_staged
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint, NoCheckpoint, NotDigested, OtherModel
from rover_bus.flash.staged import StagedCut, find_staged, open_staged


class Verified(NamedTuple):
    """A cut whose every byte is what was digested, and a line for every newer slot that was passed over."""

    staged: StagedCut
    refused: tuple[str, ...]


def open_verified(path: Path, *, writable: bool = False) -> StagedCut | None:
    """Lock, map and check a slot; None if it is being written, holds nothing or is gone. See `staged.open_staged`.

    Raises NotDigested, NewerCheckpoint, BrokenCheckpoint: file, array and bytes are named.
    """
    staged = open_staged(path, writable=writable)
    if staged is None:
        return None
    try:
        if verify_staged(staged) is None:
            raise NotDigested(
                f"{path}: cut {staged.cut} has no digests yet, and nothing is believed before (P12): use another copy"
            )
    except BaseException:
        staged.close()
        raise
    return staged


def newest_verified(
    directory: Path,
    part: str,
    *,
    cut: int | None = None,
    of: tuple[int, int] | None = None,
    model: str = "",
    writable: bool = False,
) -> Verified:
    """The newest cut of a part that is what was digested, or the given one. `of`: its timeline and generation.

    Raises NoCheckpoint, OtherModel, NewerCheckpoint; where there is something, but nothing that can be believed, BrokenCheckpoint
    or NotDigested with a line for each slot.
    """
    refused: list[str] = []
    slots = find_staged(directory, part, refused)
    broken = bool(refused)
    for found in slots:
        if cut not in (None, found.seal.cut) or of not in (
            None,
            (found.seal.timeline, found.seal.generation),
        ):
            continue
        try:
            staged = open_verified(found.path, writable=writable)
        except NewerCheckpoint:
            raise
        except (NotDigested, BrokenCheckpoint) as error:
            broken |= isinstance(error, BrokenCheckpoint)
            refused.append(str(error))
            continue
        if staged is None:
            continue
        if staged.head.model != model:
            staged.close()
            text = f"cut {staged.cut} of {part} is of model {staged.head.model!r}, not {model!r}"
            raise OtherModel(f"{text}: restore it with its own program, or give the job another name")
        if staged.seal == found.seal:
            return Verified(staged, tuple(refused))
        staged.close()
    if refused:
        raise (BrokenCheckpoint if broken else NotDigested)("; ".join(refused))
    which = "no cut" if cut is None else f"no cut {cut}"
    raise NoCheckpoint(
        f"{directory} holds {which} of {part}: restore from peers or storage, or start from nothing"
    )
