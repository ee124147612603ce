"""`rover`: the command line, and the composition root that starts every service.

    entry.py        the door: the fast path of `rover decode`, errors as one line, exit codes
    group.py        the commands by name; each is imported when it is asked for
    decode.py       any bytes to JSON, schema-less
    job_file.py     JOB.toml to a JobSpec (units.py reads sizes and durations)
    home.py         a stack's state directory: secret, address, logs
    serve.py        the composition root: one service as a process of its own
    supervisor.py   keeps such processes alive; stack.py makes a broker and them one stack
    connection.py   a command's short visit to the bus
    history.py      facts as they were stored; narration.py tells one in a line; report.py sums a job up
    commands/       one module a command

Importing this package imports nothing else: `rover decode` starts as fast as Python and msgpack do.
"""
