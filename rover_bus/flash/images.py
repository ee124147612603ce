"""Images of staged parts: the bytes of all their arrays as one run, what changed of it, and back (protocol P13).

    holder of parity  <-  owner of a part: an offer, then bytes (node/storage/peers.py): all of them, or differences (old XOR new)

Fed with offers and bytes as `copies.py` describes them; feeds `parity.py` with deltas, and a host that rebuilds a lost part with
images. The order of the run is the offer's, without gaps, so that it does not depend on the slots of either side.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import msgspec
import numpy as np

from rover_bus.flash.copies import CopySource, Offer, Sent, Since
from rover_bus.flash.copying import as_bytes
from rover_bus.flash.errors import BrokenCheckpoint
from rover_bus.flash.layout import Array, size_of
from rover_bus.flash.parity import PartDelta, RowsChanged
from rover_bus.flash.staged import StagedCut


def image_bytes(offer: Offer) -> int:
    """Return how long the image of an offered part is."""
    return sum(size_of(sent.dtype, sent.shape) for sent in offer.arrays)


def image_of(staged: StagedCut) -> Array:
    """The image of a part that is staged here."""
    return np.concatenate(
        [np.empty(0, np.uint8), *(as_bytes(np.ascontiguousarray(each)) for each in staged.arrays.values())]
    )


def read_image(source: CopySource) -> tuple[Offer, Array]:
    """The whole image of what a source has. Raises what the source raises."""
    offer = source.ask(Since())
    image = np.empty(image_bytes(offer), np.uint8)
    source.read_into(image)
    return offer, image


def read_delta(source: CopySource, part: int, base_cut: int, since: Since) -> tuple[Offer, PartDelta]:
    """What a part's image differs in from the one of `base_cut`, or all of it if the owner does not know (then `base_cut` 0).

    `part`: its number in the group. The source must have been asked for differences.
    """
    offer = source.ask(since)
    changes = tuple(_read_changes(source, offer))
    return offer, PartDelta(
        part=part,
        base_cut=base_cut if offer.base_save else 0,
        cut=offer.cut,
        size_bytes=image_bytes(offer),
        changes=changes,
    )


def _read_changes(source: CopySource, offer: Offer) -> Iterator[RowsChanged]:
    sizes = [size_of(sent.dtype, sent.shape) for sent in offer.arrays]
    for sent, size, end in zip(offer.arrays, sizes, accumulate(sizes), strict=True):
        if sent.rows is None:
            difference = np.empty(size, np.uint8)
            source.read_into(difference)
            none = np.empty(0, np.int64)
            yield RowsChanged(offset_bytes=end - size, row_bytes=1, ids=none, difference=difference)
        elif sent.rows:
            yield _read_rows(source, sent, size, end - size)


def _read_rows(source: CopySource, sent: Sent, size: int, offset: int) -> RowsChanged:
    count, row_bytes = sent.rows or 0, size // max(1, sent.shape[0])
    if count > sent.shape[0]:
        raise BrokenCheckpoint(f"more rows of {sent.name} came than it has: its parity is made again")
    ids = np.empty(count, "<u8")
    source.read_into(as_bytes(ids))
    difference = np.empty(count * row_bytes, np.uint8)
    source.read_into(difference)
    return RowsChanged(
        offset_bytes=offset, row_bytes=row_bytes, ids=ids.astype(np.int64), difference=difference
    )


class ImageSource:
    """An image that was rebuilt, as the source of a copy: what it holds is checked against the digests of its offer."""

    def __init__(self, offer: Offer, image: Array) -> None:
        whole = tuple(msgspec.structs.replace(sent, rows=None) for sent in offer.arrays)
        self._offer = msgspec.structs.replace(offer, base_save=0, arrays=whole)
        self._image, self._at = image, 0

    def ask(self, _since: Since) -> Offer:
        self._at = 0
        return self._offer

    def read_into(self, target: Array) -> None:
        target[:] = self._image[self._at : self._at + len(target)]
        self._at += len(target)
