"""One host: what it can give, what runs on it, what became of it.

Read in this order: `port` (what a platform must do, and what it reports), `members` (what is desired and observed, and how both
change), `decider` (starts, stops and changes that follow), with `programs` (whether a job's program starts here), `affinity`
(which cores a member gets) and `exits` (how a member ends); `turns` (when a decider is asked, and on what history), `outbox` and
`presence` (facts that must arrive; the key that says "this host is here"), `troubles` (what is said of a member beside its start
and its end), `questions` (what a daemon is asked), `daemon` (the shell of all that), `service` (what puts a daemon together). A
platform is realised by `local` (processes of this machine), by `simulated` (coroutines on a virtual clock), and by `kube` (pods).
`storage` keeps what members stage: its own decider, with a shell beside the daemon's. docs/design/0007 has the reasons.
"""
