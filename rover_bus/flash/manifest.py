"""The manifest: the one small file that makes part files a checkpoint (P14).

Written last, by one daemon on a logged instruction, and twice (`.manifest` and `.copy`: one flipped bit, or one file
cut short, costs no checkpoint); self-contained: with it and the files that it names a model and
its place in the data are restored, and nothing else is asked. Pure bytes in, values out.
"""

from __future__ import annotations

import msgspec
import xxhash

from rover_bus.events.units import number_in
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint
from rover_bus.flash.part import PartFile

MAGIC = b"ROVERMAN"
VERSION = 1
HEADER_BYTES = len(MAGIC) + 4 + 16
FOLDER = "manifests"
FIRST, SECOND = ".manifest", ".copy"


def stem_of(timeline: int, generation: int, cut: int) -> str:
    """What the names of a cut's manifest and of its part files begin with."""
    return f"{timeline:016x}-{generation:08d}-{cut:012d}"


def path_of(timeline: int, generation: int, cut: int) -> str:
    """Where the first copy of a cut's manifest lies; `second_path` says where the other one is."""
    return f"{FOLDER}/{stem_of(timeline, generation, cut)}{FIRST}"


def second_path(path: str) -> str:
    return path.removesuffix(FIRST) + SECOND


def age_of(path: str) -> tuple[int, int]:
    """(generation, cut) from the name of a manifest or of a part file; (-1, -1) for a name that is none of ours."""
    words = path.rpartition("/")[2].partition(".")[0].split("-")
    generation, cut = map(number_in, words[1:3]) if len(words) > 2 else (-1, -1)
    return (generation, cut) if min(generation, cut) >= 0 else (-1, -1)


class PartChain(msgspec.Struct, frozen=True, kw_only=True):
    """One part: the whole file first, then deltas in order; the last one is this cut. `owner` is its owner's own
    (slots, applied sets)."""

    name: str
    files: tuple[PartFile, ...]
    owner: bytes = b""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint. `ledger` is the master's own; `about` says in words what made it (program version, seed, order
    of the data)."""

    job_uid: str
    timeline: int
    generation: int
    cut: int
    parts: tuple[PartChain, ...]
    model: str = ""
    ledger: bytes = b""
    about: dict[str, str] = {}

    @property
    def path(self) -> str:
        return path_of(self.timeline, self.generation, self.cut)

    @property
    def age(self) -> tuple[int, int]:
        """Within one timeline, the greater is the newer."""
        return self.generation, self.cut

    @property
    def files(self) -> set[str]:
        """Everything that must be kept for this checkpoint."""
        return {file.path for part in self.parts for file in part.files}


MANIFESTS = msgspec.msgpack.Decoder(Manifest)  # made once, at import: see journal.py


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.msgpack.encode(manifest)
    return MAGIC + VERSION.to_bytes(4, "little") + xxhash.xxh3_128_digest(body) + body


def decode_manifest(raw: bytes, path: str) -> Manifest:
    """Raises BrokenCheckpoint and NewerCheckpoint, each one clear line."""
    if not raw:
        raise BrokenCheckpoint(f"{path} has 0 bytes: it was never finished, use an older checkpoint")
    if len(raw) < HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise BrokenCheckpoint(f"{path} is no manifest: use an older checkpoint")
    version = int.from_bytes(raw[8:12], "little")
    if version > VERSION:
        raise NewerCheckpoint(
            f"{path} has format {version}, this release reads up to {VERSION}: restore with the newer one"
        )
    body = raw[HEADER_BYTES:]
    if xxhash.xxh3_128_digest(body) != raw[12:HEADER_BYTES]:
        raise BrokenCheckpoint(f"{path} is not what was written: use an older checkpoint")
    try:
        manifest = MANIFESTS.decode(body)
    except msgspec.MsgspecError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error}): use an older checkpoint") from None
    if any(not part.files or part.files[0].is_delta for part in manifest.parts):
        raise BrokenCheckpoint(f"{path} names a part without a whole file: use an older checkpoint")
    return manifest
