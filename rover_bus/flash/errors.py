"""What can go wrong with checkpoints, each as one clear line that says what to do next.

Raised by every module of this folder. The shortage of memory is `NotEnoughMemory` of `rover_bus.events.errors`.
"""

from __future__ import annotations

from rover_bus.events.errors import InputError, PermanentError, TemporaryError


class NotPrepared(InputError):
    """`save` came before `prepare`: there is no memory to copy into."""

    code = "not_prepared"


class LayoutChanged(InputError):
    """The state no longer fits the prepared memory, and this store was told not to prepare again by itself."""

    code = "layout_changed"


class SlotsBusy(TemporaryError):
    """No slot may be overwritten now (P12): the newer cut is not complete yet, or readers hold the others."""

    code = "slots_busy"


class PartHeld(TemporaryError):
    """Another living process writes this part of this job."""

    code = "part_held"


class NoCheckpoint(PermanentError):
    """Nothing to restore is there."""

    code = "no_checkpoint"


class NotDigested(NoCheckpoint):
    """It is staged, but has no digests yet: nothing is believed before they exist (P12)."""

    code = "not_digested"


class BrokenCheckpoint(PermanentError):
    """Bytes are not what was written: cut short, flipped, empty, or not a checkpoint at all."""

    code = "broken_checkpoint"


class NewerCheckpoint(BrokenCheckpoint):
    """Written by a later release in a format that this one cannot read."""

    code = "newer_checkpoint"


class OtherModel(PermanentError):
    """A good checkpoint, of another model than the one to be restored."""

    code = "other_model"


class StorageFailed(TemporaryError):
    """The storage did not do what was asked: full, gone, read-only. What was ready before is still ready."""

    code = "storage_failed"
