"""`rover`: the command line, and the composition root that starts every service.

    entry.py        the door: the fast path of `rover decode`, errors as one line, exit codes
    group.py        the commands by name; commands/ has one module each, imported when it is asked for
    decode.py       any bytes to JSON, schema-less
    job_file.py     JOB.toml to a JobSpec (units.py reads sizes and durations)

    home.py         a stack's state directory: secret, address, logs
    serve.py        the composition root: one service as a process of its own
    supervisor.py   keeps such processes alive; stack.py makes a broker and them one stack

    connection.py   a command's short visit to the bus
    submission.py   handing a job over, following it to its end
    history.py      facts as they were stored; stories.py links them by cause; narration.py tells one in a line
    progress.py     how far a job is, by its own log
    results.py      model and witness from the parts that servers wrote; report.py sums a job up

    demonstration.py   the demo: chaos.py draws and deals the kills, narrator.py is its voice
    schemas.py      the events for other languages; samples.py makes their examples
    tables.py       columns of text, or JSON

Importing this package imports nothing else: `rover decode` starts as fast as Python and msgpack do.
"""
