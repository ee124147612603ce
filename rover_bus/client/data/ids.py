"""Categorical fields -> 64-bit ids, by a hash of their bytes.

Fed by `fields`, feeds `columns`. It is apart because the ids of a trained table must mean the same in every release: the
hash is our own, defined in one line, and pinned by golden vectors. No dictionary of values is kept or exchanged.

    id = h(length), then h = splitmix64(h XOR word) for each 8-byte little-endian word of the value, the last zero-padded

Values of equal length up to eight bytes never collide; others do with probability 2^-64 a pair. The id does not depend
on the column: fields are told apart by their tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.fields import Spans
from rover_bus.client.data.numbers import keep_bytes, words_at
from rover_bus.client.data.order import splitmix64


def hash_fields(spans: Spans) -> NDArray[np.int64]:
    """Return the id of every field: int64, shaped as the spans. The empty field has an id like any other."""
    starts, lengths = spans.starts.ravel(), (spans.ends - spans.starts).ravel()
    # The hash of a length is a table: lengths are few and fields are many.
    by_length = splitmix64(np.arange(int(lengths.max(initial=0)) + 1, dtype=np.uint64))
    ids = by_length[lengths]
    left = np.flatnonzero(lengths > 0)
    done = 0
    while len(left):
        if done == 0 and len(left) == len(ids):
            ids = splitmix64(ids ^ keep_bytes(words_at(spans.text, starts), np.minimum(lengths, 8)))
        else:
            words = keep_bytes(words_at(spans.text, starts[left] + done), np.minimum(lengths[left] - done, 8))
            ids[left] = splitmix64(ids[left] ^ words)
        done += 8
        left = left[lengths[left] > done]
    shaped: NDArray[np.int64] = ids.view(np.int64).reshape(spans.starts.shape)
    return shaped
