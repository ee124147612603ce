"""One host: what it can give, what runs on it, what became of it.

    platform.py     the decider: desired state + observed processes -> start, stop, adjust
    affinity.py     which cores and how many threads a member gets
    processes.py    the adapter: starts, adopts, stops and buries real members
    shim.py         the small process above every member (exits.py says how it ended, proctree.py what it uses)
    layout.py       the state directory: orders, records of life and death, logs
    locks.py        proofs of life that a SIGKILL cannot forge
    cgroup.py, capacity.py, sampling.py   what the host has, and what is used of it
    outbox.py, presence.py                facts that must arrive; the key that says "this host is here"
    daemon.py       the shell: facts in, actions out; service.py is its entry point

`shim.py`, `exits.py`, `proctree.py` and `locks.py` run under `python -I -S` and import the standard library's cheap part only.
"""
