"""Who may do what: roles and their rights, and the keys and tokens that make a NATS server enforce them (docs/design/0047).

In this order to read:

    rights.py     what a right and a role are, and how the server is told of them
    roles.py      a process kind is a role; its rights are a table, from which the server's permissions, docs and tests come
    tokens.py     operator, account and user tokens as NATS signs them
    accounts.py   the accounts of a stack: what each exports and imports, and the roles that it signs
    vault.py      the keys of a stack on disk, and the credentials that it gives out
    revoking.py   rights that are taken back before their time
    joining.py    the token by which a host joins, and what it is granted
    agents.py     what an agent of a node shows and gets: rights for the node that its pod is on (0062)
    host_vault.py the part of the vault that a joined host keeps

Fed by the stack's start (cli/stack.py) and by whatever starts members (cli/serve.py); feeds the broker's configuration and the
credentials of processes. Apart from events because a process that connects needs none of it.
"""
