"""How long chains of deltas may become, and which checkpoints stay: the deciders of storage.

Fed with manifests and sizes; feeds `persist`. Pure. A chain is bounded in length (a restore reads all of it) and in
bytes (it must stay cheaper than a whole part). Pruning keeps the closure of every kept chain and never takes the
last ready checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rover_bus.flash.manifest import Manifest
from rover_bus.flash.part import PartFile

MAX_LENGTH = 8
MAX_SHARE = 0.5  # deltas together, of the whole part


def should_write_whole(chain: Sequence[PartFile], delta_bytes: int, *, max_length: int = MAX_LENGTH) -> bool:
    """Whether the next part should start a new chain instead of adding a delta of this size."""
    if not chain or len(chain) >= max_length:
        return True
    deltas = delta_bytes + sum(file.size_bytes for file in chain[1:])
    return deltas > MAX_SHARE * chain[0].size_bytes


def should_compact(manifest: Manifest, *, max_length: int = MAX_LENGTH) -> bool:
    """Whether a background fold is due, before the bound forces a whole write on the persister."""
    return any(len(part.files) > max_length // 2 for part in manifest.parts)


def choose_kept(manifests: Collection[Manifest], *, last: int = 3, every: int = 0) -> list[Manifest]:
    """Retention: the newest `last` (one at least), and every `every`-th cut (0: none), newest first."""
    ordered = sorted(manifests, key=lambda manifest: manifest.age, reverse=True)
    newest = ordered[: max(1, last)]
    return newest + [item for item in ordered[len(newest) :] if every and item.cut % every == 0]


def find_unreferenced(
    kept: Collection[Manifest], present: Collection[str], writing: Collection[str] = ()
) -> list[str]:
    """Part files that no kept checkpoint needs and no process is writing."""
    needed = {path for manifest in kept for path in manifest.files} | set(writing)
    return sorted(set(present) - needed)
