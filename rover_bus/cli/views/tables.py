"""Columns of text for terminals and pipes, and the choice between them and JSON. Used by every command that lists things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import click

IDENTIFIERS = frozenset({"pid"})  # numbers that are names: written as one types them

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Give a command `-o table|json`; it gets `output`."""
    return cast("F", _form("Form of the answer.", command))


def json_option(help: str) -> Callable[[F], F]:
    """Give a command that prints lines `-o table|json`, `help` saying what is JSON then; it gets `as_json`."""

    def decorate(command: F) -> F:
        @wraps(command)
        def run(*arguments: Any, output: str, **options: Any) -> Any:
            return command(*arguments, as_json=output == "json", **options)

        return cast("F", _form(f"json: {help}", run))

    return decorate


def _form(help: str, command: Callable[..., Any]) -> Any:
    """The one spelling of the choice; `--json` is the same, hidden, for scripts that have it."""

    @wraps(command)
    def run(*arguments: Any, output: str, as_json: bool, **options: Any) -> Any:
        return command(*arguments, output="json" if as_json else output, **options)

    form = click.Choice(["table", "json"])
    run = click.option("-o", "--output", type=form, default="table", help=help)(run)
    return click.option("--json", "as_json", is_flag=True, hidden=True)(run)


def show(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], output: str, *, empty: str = "") -> None:
    """Print rows as a table of some columns, or all of them as one JSON array. `empty` is said when there is no row."""
    rows = list(rows)
    if output == "json":
        from rover_bus.cli.decode import to_line

        click.echo(to_line(rows))
    elif rows:
        click.echo(render(rows, columns))
    elif empty:
        click.echo(empty, err=True)


def render(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as aligned text; numbers stand right."""
    cells = [
        [
            str(row[column]) if column in IDENTIFIERS and row.get(column) else _text(row.get(column))
            for column in columns
        ]
        for row in rows
    ]
    widths = [max(len(column), *(len(line[at]) for line in cells)) for at, column in enumerate(columns)]
    right = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    lines = [[column.upper().replace("_", " ") for column in columns], *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
