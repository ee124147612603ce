"""Checkpoints to storage and back: write, fsync, rename, directory fsync; manifest last (P14); compaction in the same
order. What goes from there is `retention`.

Fed with contents (from staged cuts) and a port to files; used by node daemons and by `rover checkpoint`. No clock
and no thread: parts are generators that yield after each chunk, and the caller sets the pace. Whatever operation is
the last before a power cut, the newest complete checkpoint is found and no broken one is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint, NoCheckpoint, OtherModel
from rover_bus.flash.files import Files
from rover_bus.flash.layout import Array
from rover_bus.flash.manifest import (
    FIRST,
    FOLDER,
    SECOND,
    Manifest,
    PartChain,
    decode_manifest,
    encode_manifest,
    second_path,
    stem_of,
)
from rover_bus.flash.part import (
    Codec,
    Content,
    Footer,
    Identity,
    Pace,
    PartFile,
    read_footer,
    read_part,
    write_part,
)

MAX_MANIFEST_BYTES = 1 << 30
PARTIAL = ".partial"

Written = TypeVar("Written")


class RestoredPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part as it was at its cut. `extra`: its owner's own bytes; `codecs`: how its newest file stores each
    array."""

    arrays: dict[str, Array]
    extra: bytes
    codecs: dict[str, Codec]


# -- writing -----------------------------------------------------------------------------------------------------------


def persist_part(files: Files, identity: Identity, contents: Iterable[Content], extra: bytes = b"") -> Pace:
    """Write one part durably under its final name, which holds its digest: two writers of a cut never meet. Yields
    bytes written."""
    folder = f"parts/{identity.part}"
    kind = "delta" if identity.base else "whole"
    stem = f"{folder}/{stem_of(identity.timeline, identity.generation, identity.cut)}-{kind}"
    file = yield from write_part(files, stem + PARTIAL, identity, contents, extra)
    final = files.place(file.path, f"{stem}-{file.digest}.part")
    files.sync_folder(folder)
    return msgspec.structs.replace(file, path=final)


def publish(files: Files, manifest: Manifest) -> None:
    """Make parts that are all durable a checkpoint. It is `ready` when this returns; an older manifest of this cut
    is replaced. The second copy is written first: whichever of the two a power cut leaves, its parts are there."""
    for path in (second_path(manifest.path), manifest.path):
        _write(files, path, encode_manifest(manifest))
    files.sync_folder(FOLDER)


def _write(files: Files, path: str, content: bytes) -> None:
    sink = files.create(path + PARTIAL)
    try:
        sink.write(content)
        sink.sync()
    finally:
        sink.close()
    files.rename(path + PARTIAL, path)


def drain(pace: Generator[int, None, Written]) -> Written:
    """Write at full speed."""
    while True:
        try:
            next(pace)
        except StopIteration as end:
            written: Written = end.value
            return written


# -- finding and reading -----------------------------------------------------------------------------------------------


class Unreadable(NamedTuple):
    """A manifest neither copy of which can be read. `newer`: only a newer release can."""

    path: str
    reason: str
    newer: bool


def read_manifest(files: Files, path: str) -> Manifest:
    """The first copy, or the second one where that is damaged. Raises NoCheckpoint, BrokenCheckpoint, NewerCheckpoint."""
    errors: list[BrokenCheckpoint | NoCheckpoint] = []
    for copy in (path, second_path(path)):
        try:
            return read_copy(files, copy)
        except (BrokenCheckpoint, NoCheckpoint) as error:
            errors.append(error)
    raise max(
        errors, key=lambda error: (isinstance(error, NewerCheckpoint), isinstance(error, BrokenCheckpoint))
    )


def read_copy(files: Files, path: str) -> Manifest:
    """One copy of a manifest. Raises as `read_manifest` does."""
    size = files.size_of(path)
    if size > MAX_MANIFEST_BYTES:
        raise BrokenCheckpoint(f"{path} has {size} bytes, which no manifest has: use an older checkpoint")
    raw = np.empty(size, np.uint8)
    return decode_manifest(raw[: files.read_into(path, 0, raw)].tobytes(), path)


def manifest_paths(files: Files, folder: str = FOLDER) -> list[str]:
    """The paths of the first copies, also of those of which only the second one is there."""
    found = [path for path in files.list(folder) if path.endswith((FIRST, SECOND))]
    return sorted({path.removesuffix(SECOND).removesuffix(FIRST) + FIRST for path in found})


def read_manifests(files: Files) -> tuple[list[Manifest], list[Unreadable]]:
    """Every readable manifest, newest first, and each that is not."""
    good, bad = [], []
    for path in manifest_paths(files):
        try:
            good.append(read_manifest(files, path))
        except (BrokenCheckpoint, NoCheckpoint) as error:
            bad.append(Unreadable(path, str(error), isinstance(error, NewerCheckpoint)))
    return sorted(good, key=lambda manifest: manifest.age, reverse=True), bad


def list_manifests(files: Files) -> tuple[list[Manifest], list[str]]:
    """Every readable manifest, newest first, and one line for each that is not."""
    good, bad = read_manifests(files)
    return good, [each.reason for each in bad]


def read_chain(files: Files, chain: PartChain) -> RestoredPart:
    """Read one part, every byte checked. Raises NoCheckpoint and BrokenCheckpoint, naming file, array and bytes."""
    arrays, base, footer = None, "", None
    for file in chain.files:
        footer = checked_footer(files, file, base)
        arrays, base = read_part(files, file.path, footer, arrays), file.digest
    if footer is None or arrays is None:
        raise BrokenCheckpoint(f"part {chain.name} has no files: use an older checkpoint")
    codecs = {section.name: section.codec for section in footer.sections}
    return RestoredPart(arrays=arrays, extra=footer.extra, codecs=codecs)


def checked_footer(files: Files, file: PartFile, base: str) -> Footer:
    """The footer of the file that a manifest names. Raises NoCheckpoint, BrokenCheckpoint for another one."""
    footer, digest = read_footer(files, file.path)
    if digest != file.digest or footer.identity != file.identity or file.identity.base != base:
        raise BrokenCheckpoint(
            f"{file.path} is not the file that its manifest names: use an older checkpoint"
        )
    return footer


def restore(
    files: Files,
    *,
    model: str = "",
    job_uid: str | None = None,
    timeline: int | None = None,
    not_after: tuple[int, int] | None = None,
) -> tuple[Manifest, dict[str, RestoredPart], list[str]]:
    """The newest complete checkpoint, its parts by name, and a line for every newer one that is broken.

    `timeline`: needed where a storage holds more than one (P21); `not_after`: the newest (generation, cut) wanted.
    Raises NoCheckpoint, OtherModel, NewerCheckpoint: what only a newer release can read is never passed over in
    silence.
    """
    manifests, refused = list_manifests(files)
    wanted = [
        item
        for item in manifests
        if (timeline is None or item.timeline == timeline) and (job_uid or item.job_uid) == item.job_uid
    ]
    _check_one_timeline(wanted)
    for manifest in wanted:
        if not_after is not None and manifest.age > not_after:
            continue
        if manifest.model != model:
            text = f"cut {manifest.cut} is of model {manifest.model!r}, not {model!r}"
            raise OtherModel(f"{text}: restore it with its own program, or choose another directory")
        try:
            return manifest, {part.name: read_chain(files, part) for part in manifest.parts}, refused
        except NewerCheckpoint:
            raise
        except (BrokenCheckpoint, NoCheckpoint) as error:
            refused.append(str(error))
    raise NoCheckpoint(
        refused[0]
        if refused
        else "no checkpoint is stored here: start from nothing, or name another directory"
    )


def _check_one_timeline(manifests: Iterable[Manifest]) -> None:
    found = sorted(f"{timeline:x}" for timeline in {item.timeline for item in manifests})
    if len(found) > 1:
        raise BrokenCheckpoint(
            f"checkpoints of several timelines lie here ({', '.join(found)}): say which one is to be restored"
        )


def verify(files: Files, manifest: Manifest) -> list[str]:
    """One line for each part of a checkpoint that is damaged or missing."""
    lines = []
    for part in manifest.parts:
        try:
            read_chain(files, part)
        except (BrokenCheckpoint, NoCheckpoint) as error:
            lines.append(str(error))
    return lines


# -- background --------------------------------------------------------------------------------------------------------


def compact(files: Files, manifest: Manifest) -> Generator[int, None, Manifest]:
    """Fold every chain into one whole file of the same cut and codecs, then name those in the manifest. Yields
    bytes written.

    The old files stay until they are pruned: a restore that began with the old manifest can still finish.
    """
    parts = []
    for part in manifest.parts:
        if len(part.files) < 2:
            parts.append(part)
            continue
        restored = read_chain(files, part)
        identity = msgspec.structs.replace(part.files[-1].identity, base="")
        contents = [
            Content(name=name, array=array, codec=restored.codecs[name])
            for name, array in restored.arrays.items()
        ]
        whole = yield from persist_part(files, identity, contents, restored.extra)
        parts.append(msgspec.structs.replace(part, files=(whole,)))
    folded = msgspec.structs.replace(manifest, parts=tuple(parts))
    if folded != manifest:
        publish(files, folded)
    return folded
