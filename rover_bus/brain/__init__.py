"""The Brain: cluster level. It sizes all jobs by measured windows; one leads, and its successor replays the same log.

In the order in which a newcomer reads it:

state.py        what is known of hosts and jobs; log.py: what is decided; evolution.py, evolution_of_hosts.py,
                evolution_of_windows.py: how records change what is known
decider.py      inputs in, records out: `_look` at every tick, `_take_turn` of a job after each of its windows
watch.py        samples on their way into a window; learning_hosts.py: what a window shows of hosts

sizes           choosing.py: one round of all jobs; starting.py: how a job begins; wishes.py: what one job asks for; sizing.py: its
                first size alone; spaces.py: which sizes it may have; predicting.py: what another size would bring; granting.py:
                capacity, quotas, priorities, room on hosts; next_best.py: what is taken where hosts refuse
plans           settling.py, proposing.py: from a wish to a plan; judging.py: kept or taken back; unsettled.py: of which nothing
                can be told; stalled.py: whose members cannot start; asked.py: what a person asks for
remedies        remedies.py: slow workers, hot servers, targets; memory_relief.py; silence.py: lost hosts; hosts.py: slow ones;
                rooms.py: what hosts have free and where members go; loads.py: what they carry
rules.py        prices, weights and restraint, once for all jobs

decisions/      pure functions from figures to plans with reasons: reasons.py lists these; models/: how a job runs, learns, grows
publishing.py   records to facts (P18)
v1.py           the decider as a library, without a bus; told.py: the values that a scheduler and it exchange
service.py      the decider behind the shell; keeping.py and ended_jobs.py: which ended jobs are forgotten

history.py, history_files.py   past jobs as one line each; fitting.py, tables.py, doubts.py: `rover fit`
"""
