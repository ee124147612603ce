"""The door of `rover`: what is asked for is imported, nothing else.

Fed by the shell, feeds group.py. `rover decode` is answered before click is imported, because the nats CLI starts it once
a message. Errors of ours become one line on stderr and their exit code (docs/cli.md); so does a bug in us, unless
ROVER_DEBUG is set.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `rover decode` pays for every import here
if TYPE_CHECKING:
    from types import TracebackType

INTERRUPTED = 130  # as shells say it: 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE


def main() -> int:
    """Run one command line; return its exit code."""
    try:
        if sys.argv[1:] == ["decode"]:
            from rover_bus.cli import decode

            decode.run(sys.stdin.buffer, sys.stdout.buffer)
            return 0
        from rover_bus.cli.collecting import end_uncollected, loading

        end_uncollected()
        with loading():
            import rover_bus.cli.group  # noqa: F401 (half of what a short command loads)
        return _run_command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `rover events | head`: the rest is not wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _run_command() -> int:
    import click

    from rover_bus.cli.group import ReaderGone, rover
    from rover_bus.events.errors import RoverError

    debugging = bool(os.environ.get("ROVER_DEBUG"))
    if not debugging:
        sys.excepthook = _say_bug
    try:
        return int(rover.main(prog_name="rover", standalone_mode=False) or 0)
    except click.Abort:
        return INTERRUPTED
    except ReaderGone as gone:
        raise BrokenPipeError from gone
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RoverError as error:
        if debugging:
            raise
        click.echo(f"rover: {error}", err=True)
        return error.exit_code


def _say_bug(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    said = " ".join(str(error).split()) or "no message"
    sys.stderr.write(f"rover: {kind.__name__}: {said} (a bug in rover: ROVER_DEBUG=1 shows where)\n")


if __name__ == "__main__":
    sys.exit(main())
