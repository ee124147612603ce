"""docs/cli.md's exit codes as a table: what is typed after `rover`, the code that it ends with, a word of what stderr says.

Run row by row: those that need no stack by tests/core/cli/test_command_line.py, others by tests/broker/cli/test_exit_codes.py on
one shared stack. Every code that the page names appears here, and none that it does not name.
"""

from __future__ import annotations

from dataclasses import dataclass

from rover_bus.events.formats import FORMAT


@dataclass(frozen=True, slots=True)
class Row:
    """One command line. `meanwhile`: what the test does around it, by the name of its function in test_exit_codes.py; "": nothing.

    `words` are split at blanks; `{url}` in them is where the shared stack's broker listens.
    """

    words: str
    code: int
    says: str
    meanwhile: str = ""

    def __str__(self) -> str:
        return f"{self.words} {self.meanwhile}".strip()


WITHOUT_STACK = (
    Row("--version", 0, ""),
    Row("jobs", 4, "start one with `rover up`"),
    Row("jobs --url nats://127.0.0.1:9", 4, "no broker answers at nats://127.0.0.1:9"),
    Row("events two-words", 4, "no stack runs"),
    Row("down", 4, "start one with `rover up`"),
    Row("sbmit", 2, "Did you mean 'submit'?"),
    Row("submit absent.toml --embedded", 2, "no job file"),
    Row("submit job.toml", 2, "absent.tsv"),  # the data is looked at before a stack is looked for
    Row("run --plain absent.toml", 2, "no job file"),
    Row("run --plain failing.toml", 10, "ended with status 7"),
    Row("run -- nosuchprog", 2, "cannot run nosuchprog: No such file"),
    Row("run -- ./no-such-program", 2, "cannot run ./no-such-program: No such file"),
    Row("fit", 2, "FILE with --samples"),
    Row("fit absent.csv --samples 5", 2, "absent.csv: No such file or directory"),
    Row("fit --choose 4 --candidates c.csv --measure ./absent", 2, "there is no such program"),
    Row("fit --choose 4 --candidates c.csv --measure 'open", 2, "quote it as a shell would"),
    Row("logs nothing", 2, "no logs of members of job 'nothing'"),
    Row("simulate --count -1", 2, "-1 is not in the range"),
    Row("simulate --seed 7", 0, ""),
    Row("checkpoint list --storage /there/is/none", 2, "there is no directory /there/is/none"),
    Row("up --quota x", 2, "--quota x: write TENANT=CORES[:MEMORY]"),
    Row("up --detach --quota x", 2, "--quota x: write TENANT=CORES[:MEMORY]"),
    Row("up --max-store 1KiB", 2, "is too small"),
    Row("up --url nats://127.0.0.1:9 --host two.words", 2, "two.words"),
)
WITH_STACK = (
    Row("jobs", 0, ""),
    Row("events ads", 0, ""),
    Row("events ads -k host", 0, ""),
    Row("events adz", 2, "there is no job 'adz'; did you mean 'ads'?"),
    Row("events -k foo", 2, "there are no events of kind 'foo'"),
    Row("events -k plan.aplied", 2, "did you mean 'plan.applied'?"),
    Row("events", 141, "", "the reader has gone"),
    Row("story 999999", 2, "no event '999999'"),
    Row("checkpoint verify ads --storage damaged", 1, "damaged", "a stored part is damaged"),
    Row("submit job.toml", 3, "exists"),
    Row("submit huge.toml", 6, "of shared memory at the least"),
    Row("submit failing.toml --wait", 10, ""),
    Row("submit job.toml --name ended --wait", 11, "", "the job is stopped"),
    Row("submit job.toml --name ended-at-once --wait", 12, "", "the job is cancelled"),
    Row("submit job.toml --name followed --wait", 130, "followed goes on", "Ctrl-C once a job trains"),
    Row("plan approve ads", 3, "no plan"),
    Row("plan try ads --workers 2", 3, "", "the job is paused"),
    Row("plan try ads --workers 65", 3, "65 workers exceed the limit of 64"),
    Row("scale ads --workers 1", 3, "it has 1 worker and 1 server already"),
    Row("scale ads --workers 2", 0, ""),
    Row("plan try ads --workers 3", 0, ""),
    Row("scale ads --workers 65", 3, "65 workers exceed the limit of 64"),
    Row("cancel adz", 2, "did you mean 'ads'?"),
    Row("cancel held", 4, "has not ended within 15 s", "all masters are stopped"),
    Row("up", 3, "a stack runs in"),
    Row("up --detach", 3, "a stack runs in"),
    Row(
        "up --detach", 3, "a stack runs in"
    ),  # once more: the first one left nothing behind that answers otherwise
    Row("up --dir other --url {url}", 5, "refuses the secret: check"),
    Row("up --dir other --url {url} --detach", 5, "refuses the secret: check"),
    Row("jobs --url {url} --secret-file wrong", 5, "refuses the secret: check"),
    Row("up --dir another", 130, "members drain first", "Ctrl-C once it serves"),
    Row("up --dir yet-another", 0, "members drain first", "rover down once it serves"),
    Row("serve master --job broken", 8, "is no log batch", "the job's log is damaged"),
    Row(
        "serve master --job later",
        9,
        f"is written in format {FORMAT + 1}",
        "the job's log is of a later release",
    ),
)
ROWS = (*WITHOUT_STACK, *WITH_STACK)
