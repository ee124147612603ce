"""Facts and states as a person reads them. Nothing here starts a process or publishes an event.

Read in this order: `history` (facts as they were stored, typed where this release knows them), `narration` (one fact in a line;
`plan_narration` for those of plans), `stories` (facts linked by their causes), `tables` (columns of text, or JSON).

A job: `progress` (how far it is, by its own log), `hindrances` (why it does not get on), `checkpoints` (which are ready) and
`checkpoint_delay` (since when none is), `elsewhere` (its members on other hosts), `results` (model and witness, from what its
servers wrote), `report` (its end in figures), `moments` (its state at any moment that its log keeps).

What is followed: `picture` (all jobs now, by facts and samples), `timelines` (one job over time), `charts` (what the page
draws of both).

Plans: `plans` (what became of each), `explanation` (why one, in words), `explaining` (its inputs, its fit, its front) from
`brain_state` (the Brain's log, replayed).
"""
