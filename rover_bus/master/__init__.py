"""The master: job level. One leads a job, a hot standby follows its log; both are the same pure decider behind the shared shell.

In the order in which a newcomer reads it:

state.py        what is known of a job, as a tree; phases.py: its phases and the edges between them
evolution.py    how records change it; member_, slot_ and cut_evolution.py are parts of it
decider.py      inputs in, records out; opening.py: before the job is known; fences.py: what is stale is refused first
noticing.py     facts of others; each goes to the rule that it concerns

leases          leasing.py grants and takes commits (progress.py); ledger.py, intervals.py, stream.py: which batches are free,
                leased, done; waiting.py: requests that are held; failing.py and charges.py: failures, poison batches, budgets
members         admitting.py, concluding.py; lifecycle.py: losses, replacements, the end; hosts.py; planning.py: what runs where;
                announced.py: what is said of members before they end; restored.py: what a backup does not know of them
plans           proposals.py: refused, observed, waiting for a person, or carried out
slots           rollout.py: servers that change while training goes on; slots.py: its arithmetic; traffic.py: what servers said;
                first_servers.py: a job that begins before all of them are there
checkpoints     cut.py, cutting.py, pacing.py; recovery.py: going back; searching.py and finding.py: what lies on storage

unlogged.py     what is remembered but never logged: watch.py and the patience of rules
guarding.py     rules apart from one another: one that fails is switched off
publishing.py   records to facts (P18)
service.py      the decider behind the shell, on a bus
checks.py       what holds of the state after every record
"""
