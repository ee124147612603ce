"""The flash store: checkpoints in shared memory that survive their writer, and their way to storage and to peers.

A plain library (`store.FlashStore`: prepare, save, restore) for any job; the same parts serve our servers and
daemons. In order of a checkpoint's life: `layout`, `dirty`, `choice`, `copying`, `slot`, `seal` (staging);
`staged`, `digests`, `journal` (reading); `part`, `manifest`, `persist`, `chain`, `files` (storage); `parity` (other
hosts). Design: docs/design/0010-flash-store.md.
"""
