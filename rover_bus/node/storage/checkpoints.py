"""What the persister's threads do: digest a staged part, store it, publish a manifest, prune. Blocking, one call a task.

Fed by `persister.py` with paths and orders; stands on `flash`. It is apart because it knows files and no events: the same calls
are measured by bench/checkpoint.py. `wait` is called with the bytes just written; it sleeps for the rate, and raises to call off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from rover_bus.events.checkpoints import (
    ManifestContent,
    StoredCheckpoint,
    StoredFile,
    StoredPart,
    part_index,
)
from rover_bus.events.routing import SlotRange
from rover_bus.flash.chain import choose_kept, should_compact, should_write_whole
from rover_bus.flash.copies import open_exactly
from rover_bus.flash.digests import SlotDigests, Stop, never, read_digests
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, NotDigested
from rover_bus.flash.files import Files
from rover_bus.flash.journal import read_touched
from rover_bus.flash.layout import Array
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.manifest import Manifest, PartChain, age_of, stem_of
from rover_bus.flash.part import Codec, Content, Identity, PartFile, read_footer
from rover_bus.flash.persist import compact, persist_part, publish, read_manifests
from rover_bus.flash.retention import Damaged, ReadBack, list_damaged, prune, set_aside
from rover_bus.flash.staged import StagedCut
from rover_bus.flash.storage import Run, hold_for_work, survey, unfinished
from rover_bus.node.storage.state import PartOfCut
from rover_bus.ps.snapshots import may_be_rounded

RANGES = msgspec.msgpack.Decoder(list[SlotRange])  # as in flash/journal.py

Wait = Callable[[int], None]
Written = TypeVar("Written")
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Chain:
    """What this incarnation of the daemon stored of a part: the next cut may be a delta on it."""

    identity: Identity
    save_number: int
    files: tuple[PartFile, ...]
    shapes: Shapes


def digest_cut(directory: Path, part: str, generation: int, cut: int, stop: Stop = never) -> tuple[int, int]:
    """Digest a staged part unless it has digests; return the bytes of its arrays and the number of its save. `stop` raises to call
    it off.

    Raises NoCheckpoint, BrokenCheckpoint (also where its digests are damaged: making them again would believe what lies there).
    """
    with open_exactly(directory, part, generation, cut) as staged:
        if read_digests(staged.path, staged.seal) is None:
            digest_staged(staged, stop)
        return sum(array.nbytes for array in staged.arrays.values()), staged.seal.save_number


# -- a part ------------------------------------------------------------------------------------------------------------


def store_part(
    files: Files,
    directory: Path,
    which: PartOfCut,
    *,
    codec: Codec = "raw",
    base: Chain | None = None,
    wait: Wait = lambda _: None,
) -> Chain:
    """Write one staged part durably: as a delta on `base` where that is possible and small, else whole.

    `codec`: of the arrays that their owner lets be rounded; the others are stored as they are. A whole
    file that a former incarnation of the daemon left is used as it is. Raises StorageFailed (again
    later), NoCheckpoint, BrokenCheckpoint (the memory is not what was digested).
    """
    with open_exactly(directory, which.part, *which.cut) as staged:
        digests = read_digests(staged.path, staged.seal)
        if digests is None:
            raise NotDigested(
                f"cut {which.cut[1]} of {which.part} has no digests yet: nothing is stored before (P12)"
            )
        rounded = may_be_rounded(staged.extra) if codec != "raw" else frozenset()
        codecs: dict[str, Codec] = {name: codec if name in rounded else "raw" for name in staged.arrays}
        identity = _identify(staged, which)
        touched = _touched_since(base, staged, directory, which.part)
        whole = _whole(staged.arrays, digests, codecs)
        delta = _delta(whole, touched, base) if base and touched is not None else None
        if base and delta and not should_write_whole(base.files, sum(map(_size, delta))):
            identity = msgspec.structs.replace(identity, base=base.files[-1].digest)
            chained, contents = base.files, delta
        else:
            chained, contents = (), whole
        file = None if chained else _find_whole(files, identity)
        file = file or drain(persist_part(files, identity, contents, staged.extra), wait)
        shapes = {name: (array.dtype.str, array.shape) for name, array in staged.arrays.items()}
        return Chain(identity, staged.seal.save_number, (*chained, file), shapes)


def _identify(staged: StagedCut, which: PartOfCut) -> Identity:
    seal = staged.seal
    return Identity(
        job_uid=which.uid,
        part=which.part,
        timeline=seal.timeline,
        generation=seal.generation,
        cut=seal.cut,
        model=staged.head.model,
    )


def _touched_since(
    base: Chain | None, staged: StagedCut, directory: Path, part: str
) -> Mapping[str, Array] | None:
    """Rows touched since the stored cut, by array; None if no delta is known."""
    seal = staged.seal
    if base is None or (base.identity.timeline, base.identity.generation) != (seal.timeline, seal.generation):
        return None
    if base.save_number >= seal.save_number or base.identity.model != staged.head.model:
        return None
    return read_touched(directory, part, seal.save_number, base.save_number)


def _delta(whole: Sequence[Content], touched: Mapping[str, Array], base: Chain) -> list[Content]:
    """Touched rows where they are known and the array only grew; the other arrays whole."""
    contents = []
    for item in whole:
        ids = touched.get(item.name)
        grew = ids is not None and _grew(base.shapes.get(item.name), item.array, ids)
        contents.append(msgspec.structs.replace(item, ids=ids) if grew else item)
    return contents


def _grew(former: tuple[str, tuple[int, ...]] | None, array: Array, ids: Array) -> bool:
    """Whether rows alone lead from the former array to this one; new rows must all be among those touched."""
    if former is None or former[0] != array.dtype.str or not array.ndim or former[1][1:] != array.shape[1:]:
        return False
    old, new = former[1][0], len(array)
    return old <= new and (old == new or int((ids >= old).sum()) == new - old)


def _size(content: Content) -> int:
    rows = content.array.nbytes // max(1, len(content.array)) if content.array.ndim else content.array.nbytes
    return content.array.nbytes if content.ids is None else len(content.ids) * (rows + 8)


def _whole(arrays: Mapping[str, Array], digests: SlotDigests, codecs: Mapping[str, Codec]) -> list[Content]:
    return [
        Content(name=name, array=array, codec=codecs[name], expected=digests.digests_of(name))
        for name, array in arrays.items()
    ]


def _find_whole(files: Files, identity: Identity) -> PartFile | None:
    """The whole file of this cut that a former incarnation of the daemon finished, if its footer is what it should be."""
    stem = f"{stem_of(identity.timeline, identity.generation, identity.cut)}-whole-"
    for path in files.list(f"parts/{identity.part}"):
        if path.rpartition("/")[2].startswith(stem):
            try:
                footer, digest = read_footer(files, path)
            except (BrokenCheckpoint, NoCheckpoint):
                continue
            if footer.identity == identity:
                return PartFile(path=path, identity=identity, digest=digest, size_bytes=files.size_of(path))
    return None


def drain(pace: Generator[int, None, Written], wait: Wait) -> Written:
    """Write at the pace that `wait` allows."""
    while True:
        try:
            wait(next(pace))
        except StopIteration as end:
            written: Written = end.value
            return written


def describe_files(chain: Chain) -> list[StoredFile]:
    """The chain as events name it."""
    return [
        StoredFile(
            path=file.path,
            digest=file.digest,
            size_bytes=file.size_bytes,
            generation=file.identity.generation,
            cut=file.identity.cut,
            base=file.identity.base,
        )
        for file in chain.files
    ]


# -- a checkpoint ------------------------------------------------------------------------------------------------------


def publish_manifest(files: Files, content: ManifestContent) -> int:
    """Make stored parts a checkpoint: every file is looked for first. Return the bytes that it needs in all.

    The slots of a part are its `owner` bytes in the manifest, in msgpack. Raises StorageFailed, NoCheckpoint, BrokenCheckpoint.
    """
    parts = tuple(_find_chain(files, content, stored) for stored in content.parts)
    models = {part.files[-1].identity.model for part in parts}
    if len(models) > 1:
        raise BrokenCheckpoint(
            f"the parts of cut {content.cut} are of several models ({', '.join(sorted(models))}): nothing was published"
        )
    manifest = Manifest(
        job_uid=content.uid,
        timeline=content.timeline,
        generation=content.generation,
        cut=content.cut,
        parts=parts,
        model=models.pop() if models else "",
        ledger=content.ledger,
        about=content.about,
    )
    publish(files, manifest)
    return sum(file.size_bytes for part in parts for file in part.files)


def _find_chain(files: Files, content: ManifestContent, stored: StoredPart) -> PartChain:
    found = []
    for file in stored.files:
        try:
            footer, digest = read_footer(files, file.path)
        except NoCheckpoint:
            raise NoCheckpoint(
                f"{file.path}, stored by another host, is not in this host's storage: cut {content.cut} cannot be "
                "published. Set `path` under [checkpoint] to one directory that every host sees"
            ) from None
        identity = footer.identity
        if digest != file.digest or (identity.job_uid, identity.part) != (content.uid, stored.part):
            raise BrokenCheckpoint(
                f"{file.path} is not the file that was stored for cut {content.cut}: nothing was published"
            )
        found.append(
            PartFile(path=file.path, identity=identity, digest=digest, size_bytes=files.size_of(file.path))
        )
    return PartChain(name=stored.part, files=tuple(found), owner=msgspec.msgpack.encode(stored.slots))


def prune_run(
    run: Run,
    last: int,
    every: int,
    read: ReadBack,
    suspects: Collection[tuple[int, int]] = (),
    wait: Wait = lambda _: None,
) -> list[Damaged]:
    """Remove what retention gives up, once a newer checkpoint has been read back whole; return what was set aside as damaged.

    Where none is whole everything stays where it is, and is named. `suspects`: (generation, cut) of those that a server could
    not restore. Raises PartHeld (again later), StorageFailed, NewerCheckpoint.
    """
    files = run.files
    manifests = [item.manifest for item in survey(run)[0]]
    broken: dict[str, str] = {}
    whole = False
    for manifest in manifests:
        suspect = manifest.age in suspects
        if not whole or suspect:
            problem = drain(read.check(files, manifest, anew=suspect), wait)
            whole = whole or not problem
            if problem:
                broken[manifest.path] = problem
    if not whole:
        return [Damaged(path, *age_of(path), problem) for path, problem in broken.items()]
    with hold_for_work(run):
        aside = set_aside(files, broken)
        manifests = [item.manifest for item in survey(run)[0]]
        keep = choose_kept(manifests, last=last, every=every)
        prune(files, keep, unfinished(files, manifests))
    return aside


def search_run(
    run: Run, timelines: Collection[int], skip: Collection[tuple[int, int]], not_before: int, wanted: int
) -> tuple[StoredCheckpoint | None, int, list[str]]:
    """Return the newest checkpoint of these timelines with a readable manifest, how many lie there, and why others are no use.

    Not those in `skip`, nor of a generation before `not_before`; with `wanted` that cut alone, whatever `skip` says.
    """
    manifests, unreadable = read_manifests(run.files)
    refused = [each.reason for each in unreadable]
    found: StoredCheckpoint | None = None
    for manifest in manifests:
        if manifest.timeline not in timelines:
            refused.append(f"{manifest.path} is of another timeline of the job")
        elif wanted and manifest.cut != wanted:
            continue
        elif not wanted and manifest.generation < not_before:
            refused.append(f"{manifest.path} is from before the job began from nothing: name it to take it")
        elif found is None and (wanted or manifest.age not in skip):
            found = _describe(run, manifest)
    damaged = list_damaged(run.files)
    refused += [f"{each.path}: {each.reason}" for each in damaged]
    return found, len(manifests) + len(unreadable) + len(damaged), refused


def _describe(run: Run, manifest: Manifest) -> StoredCheckpoint:
    parts = [
        StoredPart(part=part.name, index=part_index(part.name), slots=_slots_of(part.owner), files=[])
        for part in manifest.parts
    ]
    return StoredCheckpoint(
        timeline=manifest.timeline,
        generation=manifest.generation,
        cut=manifest.cut,
        path=str(run.path),
        ledger=manifest.ledger,
        parts=parts,
    )


def _slots_of(owner: bytes) -> list[SlotRange]:
    """The slots of a part, as `publish_manifest` put them down; none for a part of another program."""
    try:
        return RANGES.decode(owner)
    except msgspec.MsgspecError:
        return []


def compact_run(run: Run, chains: Collection[Chain], wait: Wait) -> Manifest | None:
    """Fold the newest checkpoint's chains if they are long and all of them ours: no other daemon may build on the old files.

    Returns the manifest that replaced it, None if nothing was due. Raises PartHeld, StorageFailed, BrokenCheckpoint.
    """
    if not isinstance(run.path, Path):
        return None  # without a lock no daemon may fold what others build on; a chain that is too long is written whole
    with hold_for_work(run):
        ready, _ = survey(run)
        ours = {chain.files[-1].digest for chain in chains}
        manifest = ready[0].manifest if ready else None
        if manifest is None or not should_compact(manifest):
            return None
        if not all(part.files[-1].digest in ours for part in manifest.parts):
            return None
        return drain(compact(run.files, manifest), wait)
