"""What was read ahead of the training loop: a bounded queue between two threads that wakes each as rarely as it can.

Fed by `reader`'s thread, emptied by the training thread. Apart from `queue.Queue` for what a wake-up costs: two threads that hand
over every single batch spend a tenth of a millisecond of processor on it (two wake-ups, and a fight for the interpreter's lock;
`bench/overhead.py`).
Here the reading side sleeps until half of what it had laid up is used, and no thread is woken that does not sleep.

How much is laid up is a time, not a number: a fast loop needs many batches to bridge the parsing of a window, a slow one would
only keep them from others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
AHEAD_S = 0.15  # of training: what a cancelled lease wastes, or LEAST items
LEAST, MOST = 2, 16
WEIGHT = 0.2  # of the latest item in the mean time that one is used


class Ahead(Generic[T]):
    """Items in order, from one producer to one consumer."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._hungry = False  # the consumer sleeps
        self._sated = False  # the producer sleeps
        self._dropped = False
        self._used_s = AHEAD_S / 4  # how long the consumer works on an item, a mean
        self._taken_at = 0.0

    @property
    def depth(self) -> int:
        """How many items are laid up before the producer sleeps."""
        return min(max(round(AHEAD_S / max(self._used_s, 1e-9)), LEAST), MOST)

    # -- the producer ---------------------------------------------------------------------------------------------------------

    def put(self, item: T) -> None:
        """Append an item, then wait until there is room for more. Returns at once when items are not wanted any more."""
        self._items.append(item)
        # An item is there before the flag is read, and the consumer sets the flag before it looks again: none sleeps for ever.
        if self._hungry:
            with self._changed:
                self._changed.notify_all()
        if len(self._items) < self.depth:
            return
        with self._changed:
            self._sated = True
            self._changed.wait_for(lambda: self._dropped or len(self._items) <= self.depth // 2)
            self._sated = False

    # -- the consumer ---------------------------------------------------------------------------------------------------------

    def poll(self) -> T | None:
        """Return the next item, None when none is there."""
        self._note_use()
        return self._pop() if self._items else None

    def get(self) -> T:
        """Return the next item, waiting for it."""
        if not self._items:
            with self._changed:
                self._hungry = True
                self._changed.wait_for(lambda: self._items)
                self._hungry = False
        return self._pop()

    def drop(self) -> None:
        """Want nothing any more: a producer that waits goes on, what was laid up is forgotten."""
        with self._changed:
            self._dropped = True
            self._items.clear()
            self._changed.notify_all()

    def _pop(self) -> T:
        item = self._items.popleft()
        if self._sated and len(self._items) <= self.depth // 2:
            with self._changed:
                self._changed.notify_all()
        self._taken_at = time.monotonic()
        return item

    def _note_use(self) -> None:
        """The former item is done with, now that the next is asked for."""
        if self._taken_at:
            self._used_s += WEIGHT * (time.monotonic() - self._taken_at - self._used_s)
            self._taken_at = 0.0
