"""Checkpoints of this host: staged parts digested, held for other hosts, written to storage, found again (protocol P12 to P14).

Read in this order: `state` (tasks, what is taken in, what the decider knows), `evolution` (how that changes), `decider` (tasks to
begin, to call off, to give up), `holders` (which hosts hold copies and parity); `persister` (the shell: threads, and facts of
what came of them), `tasks` (each task as a thread carries it out), `checkpoints` (its calls on files of a run), `throttle` (how
all of that gives way to training); between hosts `peers` (parts over a socket), `parities` (parity blocks held for others),
`rebuilding` (a lost part from its group). docs/design/0015 has the reasons.
"""
