"""A lost part from its parity group: parity blocks and the other parts from their hosts, added up, checked, kept as a copy (P13).

Fed by the persister's task when no daemon has the part in memory. What it writes is a slot like any other copy, so that a server
here restores from it as from its own memory. The hosts that are read go on serving: nothing is asked of them but bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rover_bus.events.errors import RoverError
from rover_bus.flash.copies import hold_copy, open_exactly
from rover_bus.flash.digests import verify_staged
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint
from rover_bus.flash.images import ImageSource, image_bytes, image_of, read_image
from rover_bus.flash.layout import Array
from rover_bus.flash.parity import rebuild
from rover_bus.flash.places import job_directory
from rover_bus.node.storage.parities import Parities, ServedParity
from rover_bus.node.storage.peers import PeerSource
from rover_bus.node.storage.state import StorageTask
from rover_bus.ps.shared_secret import Secret


def rebuild_part(
    shm: Path, secret: Secret, own: Parities, task: StorageTask, addresses: Mapping[str, list[str]]
) -> None:
    """Rebuild the part of a task into this host's copies. Raises NoCheckpoint where too much is lost, BrokenCheckpoint."""
    all_hosts = list(dict.fromkeys(address for some in addresses.values() for address in some))
    blocks = dict(_find_blocks(secret, own, task, all_hosts))
    if not blocks:
        raise NoCheckpoint(
            f"no daemon has {task.part} of cut {task.cut}, nor parity of it: an older cut, or storage, is needed"
        )
    served = next(iter(blocks.values()))[0]
    images: dict[int, Array] = {}
    for number, part in enumerate(served.parts):
        if part != task.part:
            image = _own_image(shm, task, part)
            if image is None:
                image = _find_image(secret, task, part, [*addresses.get(part, []), *all_hosts])
            if image is not None:
                images[number] = image
    parities = {parity: block for parity, (_, block) in blocks.items()}
    found = rebuild(len(served.parts), images, parities)[served.parts.index(task.part)]
    source = ImageSource(served.offer, found[: image_bytes(served.offer)])
    hold_copy(shm, task.uid, task.part, source)


def _find_blocks(
    secret: Secret, own: Parities, task: StorageTask, addresses: list[str]
) -> list[tuple[int, tuple[ServedParity, Array]]]:
    blocks = []
    try:
        mine = own.serve(task.uid, task.part, task.generation, task.cut)
        blocks.append((mine[0].parity, mine))
    except (NoCheckpoint, BrokenCheckpoint):
        pass  # damaged here: another block may do
    for address in addresses:
        try:
            source = PeerSource(address, secret, task.about())
            try:
                theirs = source.read_parity()
            finally:
                source.close()
        except RoverError:
            continue
        blocks.append((theirs[0].parity, theirs))
    return blocks


def _own_image(shm: Path, task: StorageTask, part: str) -> Array | None:
    """The image of a part that is staged here and is what was digested; else others may have it."""
    try:
        with open_exactly(job_directory(shm, task.uid), part, task.generation, task.cut) as staged:
            return image_of(staged) if verify_staged(staged) is not None else None
    except (NoCheckpoint, BrokenCheckpoint):
        return None


def _find_image(secret: Secret, task: StorageTask, part: str, addresses: list[str]) -> Array | None:
    for address in dict.fromkeys(addresses):
        try:
            source = PeerSource(address, secret, task.about(part))
            try:
                return read_image(source)[1]
            finally:
                source.close()
        except RoverError:
            continue
    return None
