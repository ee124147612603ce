"""Kubernetes: the object that a team submits, and what makes it run. The only importer of kubernetes_asyncio.

Reading order: object.py (a RoverJob and the job that it means), crd.py (the resource definition), structural.py (from our
Structs to the schema that an API server enforces); then what speaks with an API server: kinds.py (what is read of each kind),
api.py (requests, at the pace of pace.py, by the session of sessions.py), watching.py (a cache of one kind that stays true); then
members as pods: pods.py (how they are written and read), endings.py (how they ended), platform.py (the port of node/port.py for one
node), held.py (one member), above what all nodes share: cluster.py, ends.py (what has ended, for successors), trials.py (whether a
program starts); then what follows objects: runs.py (what facts say of a run), roverjobs.py (an object as it is read), conditions.py
and notices.py (its status and its Events), known_objects.py (all that is known), objects.py (the decider), plan_answers.py and
answering.py (what people say of plans), resting.py (what needs no decision), service.py (its shell);
at last the process: operator.py (a daemon for each node, and what follows objects), leading.py (which of several operators acts),
reactions.py (how soon it asks for what it hears).
"""
