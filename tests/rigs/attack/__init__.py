"""Random histories of real processes with damage among the faults: drawn from a seed, carried out, judged by the witness.

    drawing.py   what a seed means: hosts, jobs, blows. All chance of a history starts here
    site.py      the hosts, each a `rover up` of its own, their memory and disks; what is left of them afterwards
    damage.py    what may become of a file
    traffic.py   foreign keys and facts on the bus
    blows.py     carries the blows out, and takes back what does not last
    judging.py   what each job came to, and what explains it
    play.py      one history from its first process to its last
    __main__.py  many histories, several at once, and what was struck in all of them

Run by `make attack` and, two seeds of it, by tests/chaos/attack. Everything that can be decided is decided by the seed; what real
processes make of it differs from run to run, so a finding is a seed and what was done, which is printed.
"""
