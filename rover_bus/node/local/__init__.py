"""The local platform: members are processes of this machine, each under a small shim that outlives the daemon.

Read in this order: `layout` (the state directory: orders, records of starts and ends, logs), `locks` (proofs of life that a
SIGKILL cannot forge), `proctree` (what /proc says of processes), `shim` (the process above every member), `processes` (the
adapter: starts, adopts and stops members, and reports how each ended), `trials` (whether a program would start here); then what
the host has and what is used of it: `capacity`, `sampling`; `platform` (the port on all that).

`shim`, `locks` and `proctree` (and `exits`, one folder up) run under `python -I -S`: they import the standard library's cheap
part only.
"""
