"""The whole system under one seed: real deciders, real shells, a broker in memory, a virtual clock, and a witness as judge.

    plan.py       what a seed draws: the job's shape, the weather, which process dies when
    cluster.py    a host, its daemon, the Brain, masters, servers and workers as simulated processes
    rules.py      the parts that a history is built from, replaceable to show what each rule is for
    tables.py     the thread of a server's tables: one thing after the other, none in no time
    members.py    what each process runs: the same services as live, with simulated training
    verdict.py    the judge: every sample applied exactly once, or dead-lettered by name
    history.py    one history from seed to verdict

`rover simulate --seed N --watch` shows one; `make simulate` runs ten thousand. A seed is a history: the same seed replays exactly.
"""
