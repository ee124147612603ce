"""One host: what it can give, what runs on it, what became of it.

Read in this order: `port` (what a platform reports, and what it must do), `members` (the decider: desired members and observed
ones in; starts, stops and changes out), with `programs` (whether a job's program starts here) and `affinity` (which cores a
member gets); `turns` (when a decider is asked, and on what history), `outbox` and `presence` (facts that must arrive; the key
that says "this host is here"), `daemon` (the shell of all that), `service` (what puts a daemon together). A platform is realised
twice: by `local` (processes of this machine) and by `simulated` (coroutines on a virtual clock); `exits` has the words of both
for how a member ended. `storage` keeps what members stage: its own decider, with a shell beside the daemon's. docs/design/0007
has the reasons.
"""
