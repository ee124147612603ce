"""Storage for a program whose one part is its whole checkpoint, and that has no daemon: `store.FlashStore` with a disk behind it.

    store_cut(newest_staged(store.directory, store.part), "checkpoints", job="mine")   # on a thread of the program's own
    ...
    cut, part = load_cut("checkpoints")                                                # shared memory went with its host

Fed with staged cuts; the files are those of any checkpoint (`persist`), so that `rover checkpoint list | verify | restore | prune
--storage` reads them. It is apart from `persist`, which knows parts, chains and owners, because such a program knows none.
"""

from __future__ import annotations

import time

from rover_bus.events.errors import InputError
from rover_bus.flash.digests import SlotDigests, read_digests
from rover_bus.flash.errors import SlotsBusy
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.location import Location, open_files, parse_location
from rover_bus.flash.manifest import Manifest, PartChain
from rover_bus.flash.part import Content, Identity
from rover_bus.flash.persist import RestoredPart, drain, persist_part, publish, restore
from rover_bus.flash.staged import StagedCut

AGAIN_S, PATIENCE_S = 0.02, 5.0


def store_cut(staged: StagedCut, storage: Location, *, job: str) -> Manifest:
    """Write a staged cut durably; it is ready when this returns, and no power cut before that harms an older one.

    The slot is locked against overwriting as long as `staged` lives: give FlashStore three slots where saves shall go on
    meanwhile. `storage`: a directory or an address, of this job alone. Every byte is checked against the cut's digests, which are
    made here where the store did not come to it yet. Raises StorageFailed, BrokenCheckpoint (damaged in memory), SlotsBusy (again
    in a moment: the store is still at it); what was ready is still ready.
    """
    files, part = open_files(parse_location(storage)), staged.path.name.partition(".")[0]
    identity = Identity(
        job_uid=job,
        part=part,
        timeline=staged.seal.timeline,
        generation=staged.seal.generation,
        cut=staged.cut,
        model=staged.head.model,
    )
    digests = _digests_of(staged)
    contents = [
        Content(name=name, array=array, expected=digests.digests_of(name))
        for name, array in staged.arrays.items()
    ]
    file = drain(persist_part(files, identity, contents, staged.extra))
    manifest = Manifest(
        job_uid=job,
        timeline=identity.timeline,
        generation=identity.generation,
        cut=staged.cut,
        model=identity.model,
        parts=(PartChain(name=part, files=(file,)),),
    )
    publish(files, manifest)
    return manifest


def _digests_of(staged: StagedCut) -> SlotDigests:
    """The store makes them behind training's back, or at the next save; only its touched-link is waited for here."""
    for _ in range(round(PATIENCE_S / AGAIN_S)):
        digests = read_digests(staged.path, staged.seal)
        if digests is not None:
            return digests
        try:
            return digest_staged(staged)
        except SlotsBusy:
            time.sleep(AGAIN_S)
    return digest_staged(staged)


def load_cut(storage: Location, *, model: str = "") -> tuple[int, RestoredPart]:
    """Return the number and the content of the newest whole checkpoint of a storage, every byte checked.

    Raises NoCheckpoint, OtherModel, NewerCheckpoint; InputError for the checkpoint of a job with several parts.
    """
    manifest, parts, _ = restore(open_files(parse_location(storage)), model=model)
    if len(parts) != 1:
        raise InputError(
            f"{storage} has a checkpoint of {len(parts)} parts: `rover checkpoint restore` puts them together"
        )
    (part,) = parts.values()
    return manifest.cut, part
