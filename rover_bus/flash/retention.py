"""What goes from a run's storage, and what is set aside instead: retention carried out (P14).

    <run>/damaged/manifests/   manifests that cannot be read, and those whose parts are not what was written
    <run>/damaged/parts/       the part files that only such manifests name

Fed with the manifests to keep (`chain.choose_kept`); used by node daemons and by `rover checkpoint prune`. Three rules: nothing
older goes before a newer checkpoint has been read back whole; what is damaged is moved, never deleted, and is not counted;
manifests go first and durably, parts after them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import NamedTuple

from rover_bus.flash.chain import find_unreferenced
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint, NoCheckpoint
from rover_bus.flash.files import DAMAGED, Files
from rover_bus.flash.manifest import FOLDER, Manifest, age_of, second_path
from rover_bus.flash.part import check_part, read_footer
from rover_bus.flash.persist import (
    PARTIAL,
    Unreadable,
    checked_footer,
    manifest_paths,
    publish,
    read_copy,
    read_manifest,
    read_manifests,
)

PARTS = "parts"


class Damaged(NamedTuple):
    """A checkpoint that was set aside. `path`: where its manifest lies now. Generation, cut: -1 for a name that is none of ours."""

    path: str
    generation: int
    cut: int
    reason: str

    def __str__(self) -> str:
        return f"cut {self.cut} of generation {self.generation}" if self.cut >= 0 else self.path


# -- is it whole -------------------------------------------------------------------------------------------------------


class ReadBack:
    """Reads checkpoints back from storage; remembers the files that were whole, so that each is read once."""

    def __init__(self) -> None:
        self._whole: set[str] = set()

    def check(self, files: Files, manifest: Manifest, *, anew: bool = False) -> Generator[int, None, str]:
        """Read every byte that a checkpoint needs; return what is wrong, "" if it is whole. Yields bytes read.

        anew: also the files that were whole before. Raises StorageFailed, NewerCheckpoint.
        """
        for part in manifest.parts:
            base = ""
            for file in part.files:
                if anew or file.digest not in self._whole:
                    try:
                        footer = checked_footer(files, file, base)
                        yield from check_part(files, file.path, footer)
                    except NewerCheckpoint:
                        raise
                    except (BrokenCheckpoint, NoCheckpoint) as error:
                        self._whole.discard(file.digest)
                        return str(error)
                    self._whole.add(file.digest)
                base = file.digest
        return ""


# -- what is damaged ---------------------------------------------------------------------------------------------------


def set_aside(files: Files, broken: Mapping[str, str] = {}) -> list[Damaged]:
    """Move manifests that cannot be read, and those named in `broken` (path: why), with the parts that only these name.

    Those of a newer release are not damaged: they stay. Returns what was moved now.
    """
    good, bad = read_manifests(files)
    moved = [each for each in bad if not each.newer]
    moved += [Unreadable(item.path, broken[item.path], False) for item in good if item.path in broken]
    for each in moved:
        for path in (second_path(each.path), each.path):
            if path in files.list(FOLDER):
                files.set_aside(path)
    if moved:
        files.sync_folder(FOLDER)
        _move_parts(files, [item for item in good if item.path not in broken])
    return [Damaged(f"{DAMAGED}/{each.path}", *age_of(each.path), each.reason) for each in moved]


def _move_parts(files: Files, good: Sequence[Manifest]) -> None:
    needed = {path for manifest in good for path in manifest.files}
    for path in sorted(_named_by_damaged(files) - needed):
        files.set_aside(path)


def list_damaged(files: Files) -> list[Damaged]:
    """The checkpoints that were set aside, newest first."""
    found = []
    for path in manifest_paths(files, f"{DAMAGED}/{FOLDER}"):
        try:
            read_manifest(files, path)
            reason = "parts of it are damaged"
        except (BrokenCheckpoint, NoCheckpoint) as error:
            reason = str(error)
        found.append(Damaged(path, *age_of(path), reason))
    return sorted(found, key=lambda each: (each.generation, each.cut), reverse=True)


def free_damaged(files: Files) -> list[str]:
    """Delete what was set aside, and what is damaged and not yet moved; return the paths."""
    set_aside(files)
    named = _named_by_damaged(files)
    needed = {path for manifest in read_manifests(files)[0] for path in manifest.files}
    gone = [*files.list(DAMAGED), *sorted(named - needed)]
    for path in gone:
        files.remove(path)
    return gone


def _named_by_damaged(files: Files) -> set[str]:
    """The files below `parts/` that damaged manifests name, or may name where they cannot be read."""
    damaged = manifest_paths(files, f"{DAMAGED}/{FOLDER}")
    if not damaged:
        return set()
    present = files.list(PARTS)
    links = _Links(files, [*present, *files.list(f"{DAMAGED}/{PARTS}")])
    named: set[str] = set()
    for path in damaged:
        try:
            named |= read_manifest(files, path).files
        except (BrokenCheckpoint, NoCheckpoint):
            named |= links.chains_of(path)
    return named & set(present)


class _Links:
    """Which part file builds on which, as their footers say."""

    def __init__(self, files: Files, paths: Collection[str]) -> None:
        self._paths = paths
        self._base: dict[str, str | None] = {}  # None: the footer cannot be read
        self._by_digest: dict[str, str] = {}
        for path in paths:
            try:
                footer, digest = read_footer(files, path)
            except (BrokenCheckpoint, NoCheckpoint):
                self._base[path] = None
            else:
                self._base[path], self._by_digest[digest] = footer.identity.base, path

    def chains_of(self, manifest: str) -> set[str]:
        """The files of this manifest's cut, and all that these build on."""
        stem = _stem(manifest)
        found: set[str] = set()
        waiting = [path for path in self._paths if path.rpartition("/")[2].startswith(f"{stem}-")]
        while waiting:
            path = waiting.pop()
            if path in found:
                continue
            found.add(path)
            base = self._base[path]
            if base is None:
                waiting += self._older(path)
            elif base in self._by_digest:
                waiting.append(self._by_digest[base])
        return found

    def _older(self, path: str) -> list[str]:
        """Whatever a delta without a footer may build on: all older files of its part."""
        part = path.split("/")[-2]
        return [each for each in self._paths if each.split("/")[-2] == part and age_of(each) < age_of(path)]


# -- retention ---------------------------------------------------------------------------------------------------------


def prune(files: Files, keep: Sequence[Manifest], writing: Collection[str] = ()) -> list[str]:
    """Remove every checkpoint but `keep` (see `chain.choose_kept`), manifests durably first, then files that are not needed; return
    their paths.

    What cannot be read is set aside with its parts; manifests of a newer release stay, with every part file: which of them
    they need is unknown here. `writing`: paths of parts that are durable but not published yet.
    """
    if not keep:
        return []
    set_aside(files)
    newer = [each.path for each in read_manifests(files)[1] if each.newer]
    gone = _superfluous(files, [manifest.path for manifest in keep], newer)
    for path in gone:
        files.remove(path)
    files.sync_folder(FOLDER)
    survivors = [read_manifest(files, manifest.path) for manifest in keep]
    _repair(files, survivors)
    unneeded = find_unreferenced([*keep, *survivors], [] if newer else files.list(PARTS), writing)
    damaged = _named_by_damaged(files)
    for path in unneeded:
        if path in damaged:
            files.set_aside(path)
        else:
            files.remove(path)
    return [*gone, *(path for path in unneeded if path not in damaged)]


def _superfluous(files: Files, keep: Collection[str], newer: Collection[str]) -> list[str]:
    """The files among the manifests that belong to none of these, and what former writers left half done."""
    stays = {_stem(path) for path in (*keep, *newer)}
    newest = max(map(age_of, keep))
    found = files.list(FOLDER)
    gone = [path for path in found if _stem(path) not in stays and not path.endswith(PARTIAL)]
    return gone + [path for path in found if path.endswith(PARTIAL) and age_of(path) <= newest]


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def _repair(files: Files, manifests: Sequence[Manifest]) -> None:
    """Write a manifest again of which one copy is not as the other: the next flipped bit may hit that one."""
    for manifest in manifests:
        try:
            same = read_copy(files, manifest.path) == read_copy(files, second_path(manifest.path))
        except (BrokenCheckpoint, NoCheckpoint):
            same = False
        if not same:
            publish(files, manifest)
