"""`rover`: the command line, and the composition root that starts every service.

Read in this order: `entry` (the door: the fast path of `rover decode`, errors as one line, exit codes), `group` (the commands by
name) and `commands/` (one module each, imported when its command is asked for), `decode` (any bytes to JSON, without a schema).

A stack: `home` (its state directory: secret, address, logs), `serve` (the composition root: one service as a process of its own),
`supervisor` (keeps such processes alive), `stack` (a broker and they as one), `tended_broker` and `endings` (what becomes of those
that end), `last_checkpoints` and `staged_cuts` (what a stack leaves that goes down), `options` and `open_files` (checked before it
starts).

A job: `connection` (a command's short visit to the bus), `programs` and `shared_memory` (what is asked of its hosts first),
`submission` (handed over, followed to its end), `trials` and `rollouts` (other sizes and servers, asked for and followed), `plain`
(without a stack), `completion` (job names for the shell).

`views/` turns facts and states into what a person reads; `demo/` is all that exists for `rover demo`. `schemas` and `samples` write
the events for other languages.

Importing this package imports nothing else: `rover decode` starts as fast as Python and msgpack do.
"""
