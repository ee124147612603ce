"""Elastic parameter servers: tables in slots, applied once, served over sockets that demand the job's secret.

Read in this order: `spec` (what a program declares), `store` (what a training loop sees), `plan` (ids to unique rows to servers),
`tables` (of `hashed`, `growing`, `dense`: rows and optimizers), `admission` (what may be applied, once), `core` (a server without
a socket), `messages` and `frame` (the wire), `exchange` (a worker without a socket), `server` and `client` (the two shells),
`service` (a server's run on the bus); for slots that move `moving`, `transfer`, `moves` (docs/design/0013).
docs/design/0003-parameter-servers.md has the reasons.
"""
