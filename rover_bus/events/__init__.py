"""The language and the wire: event types, subjects, codec, streams, the Bus and its adapters, the service shell.

A map for the newcomer, in reading order:

    identity.py, job.py       what is talked about: members, resources, jobs, data sets
    facts.py                  what happened, readable: `rover.job.<job>.<noun>.<verb>`
    data_facts.py, plan_facts.py, host_facts.py, checkpoint_facts.py   the same about these four
    log.py                    what a master decided: packed batches of records on `rover.job.<job>.log`; most are facts
    requests.py               what members ask of a master, and its answers
    profiles.py               samples: short-lived, lossy
    subjects.py               the grammar of subjects; names are validated here and concatenated nowhere else
    codec.py, envelope.py     typed events to bytes and back; headers
    streams.py                streams and buckets as data
    formats.py                which format a stack writes, and which release may take part in it
    bus.py                    the port: what a service may do to the outside
    nats_bus.py, nats_*.py    its adapter on NATS: connection, storage, followers, services
    memory_bus.py, memory_*.py   its adapter in memory, with weather from a seed; virtual_time.py is its clock
    shell.py                  the one service shell: stand by, take over, decide, append, answer, publish
    journal.py, leadership.py, intake.py, outbox.py   parts of the shell: the log, the leader's key, what arrives, what leaves
    asking.py                 the other side: the leader, asked until it answers
    broker.py                 an embedded nats-server

Importing this package imports neither nats nor asyncio. It imports nothing else of ours.
"""
