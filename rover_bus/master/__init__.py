"""The master: job level. One leads a job, a hot standby follows its log; both are the same pure decider behind the shared shell.

intervals.py    sets of batches as intervals
ledger.py       which batches are free, leased, committed, dead (design §5, protocol P1, P6 to P8)
stream.py       batches of a stream: spans fixed at the grant, watermarks
sizing.py       how much work a lease holds
roster.py       members: planned, admitted, lost; incarnations (P5)
charges.py      failures: poison batches, deterministic errors, budgets
watch.py        what is remembered but never logged: who was heard when (P19), rates
state.py        all of it as one state, and its snapshot
decider.py      decide(input) and evolve(record)
outbox.py       records to readable facts (P18)
service.py      the decider behind the shell, on a bus
"""
