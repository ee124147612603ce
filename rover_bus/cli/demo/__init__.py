"""`rover demo`: a private stack, a job, kills, and a verdict. No other command needs this room.

Read in this order: `demonstration` (the demo as a program) and `job` (what it trains), `acts` (the scenes of its story), `chaos`
(kills, drawn from a seed) and `slowing` (a straggler on demand), `narrator` (its voice), `verdict` (its end in figures).

What the verdict compares with: `beside` (one process at the lowest priority), `unmanaged` (the same job without a control plane;
one process of it in `unmanaged_member`) and `unmanaged_runs` (recorded runs of it).

The other play, `rover demo --act servers`: `server_demonstration` and `server_acts`.
"""
