"""List every line that the product says to a person: errors, events, log lines, what commands print, `--help`.

python docs/make_lines.py [KIND ...]        error, event, log, print, help; all of them without an argument

Each line is `file:line: KIND: text`, with `{...}` where a value stands. Read as a whole it shows whether each names the thing, what
happened and what to do; tests/core/cli/test_lines.py keeps it free of subjects that name nothing (who, nobody, somebody).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "rover_bus"
VIEWS = ("narration.py", "plan_narration.py", "explanation.py", "hindrances.py", "checkpoint_delay.py")
LOGS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"log", "_log", "logger"})
PRINTS = frozenset({"echo", "say", "_say", "Finding", "leave_out", "write_line"})
STYLED = frozenset({"say", "_say"})
HELPED = frozenset({"help", "short_help", "description"})


class Line(NamedTuple):
    """One text with the place where it stands. `kind`: error, event, log, print or help."""

    path: str
    number: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.kind}: {self.text}"


def list_lines(package: Path = PACKAGE) -> list[Line]:
    """Return every line of a package, by file and line."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    errors = error_classes(trees.values())
    found = {line for path, tree in trees.items() for line in _of_module(path, package, tree, errors)}
    return sorted(found)


def error_classes(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of RoverError and of all classes below it."""
    bases = {
        node.name: {
            base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases
        }
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    known = {"RoverError"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return frozenset(known)


def _of_module(path: Path, package: Path, tree: ast.Module, errors: frozenset[str]) -> Iterator[Line]:
    name = str(path.relative_to(package.parent))
    is_view = path.name in VIEWS and path.parent.name == "views"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            kind = _kind_of(node, errors)
            for said in _texts(_saying(node)) if kind else ():
                yield Line(name, said.lineno, kind, _spoken(said))
            for each in node.keywords:
                if each.arg in HELPED:
                    yield from (
                        Line(name, said.lineno, "help", _spoken(said)) for said in _texts([each.value])
                    )
        elif isinstance(node, ast.Return) and is_view and node.value is not None:
            yield from (Line(name, said.lineno, "event", _spoken(said)) for said in _texts([node.value]))
        elif (
            isinstance(node, ast.Tuple) and path.name == "group.py"
        ):  # a command's module and its line in `rover --help`
            yield from (Line(name, said.lineno, "help", _spoken(said)) for said in _texts(node.elts))
        elif isinstance(node, ast.FunctionDef) and _is_command(node):
            yield Line(name, node.lineno, "help", " ".join((ast.get_docstring(node) or "").split()))


def _kind_of(call: ast.Call, errors: frozenset[str]) -> str:
    """Return what a call says: "" for one that says nothing."""
    match call.func:
        case ast.Name(id=name):
            return "error" if name in errors else "print" if name in PRINTS else ""
        case ast.Attribute(value=ast.Name(id=logger), attr=name) if logger in LOGGERS:
            return "log" if name in LOGS else ""
        case ast.Attribute(value=ast.Attribute(attr=logger), attr=name) if logger in LOGGERS:
            return "log" if name in LOGS else ""
        case ast.Attribute(attr=name):
            return "error" if name in errors else "print" if name in PRINTS else ""
        case _:
            return ""


def _saying(call: ast.Call) -> list[ast.expr]:
    """Return the arguments that may hold what a call says: the second one of `say` is a style."""
    return call.args[:1] if getattr(call.func, "attr", getattr(call.func, "id", "")) in STYLED else call.args


def _is_command(node: ast.FunctionDef) -> bool:
    """Whether click shows the docstring: one of the decorators ends in `.command(...)`, `.group(...)`, or names them."""
    called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(getattr(each, "attr", "") in ("command", "group") for each in called)


def _texts(nodes: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Yield the texts among arguments, also those between which a condition or a dictionary chooses."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if " " in text:
                yield node
            case ast.JoinedStr():
                yield node
            case ast.IfExp(body=body, orelse=other):
                yield from _texts([body, other])
            case ast.BoolOp(values=values):
                yield from _texts(values)
            case ast.BinOp(left=left, right=right):
                yield from _texts([left, right])
            case ast.Subscript(value=ast.Dict(values=values)):
                yield from _texts(values)
            case _:
                continue


def _spoken(node: ast.expr) -> str:
    """Return a text with its values in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=values):
            parts = [
                each.value if isinstance(each, ast.Constant) else f"{{{ast.unparse(each.value)}}}"
                for each in values
                if isinstance(each, ast.Constant | ast.FormattedValue)
            ]
            return " ".join("".join(map(str, parts)).split())
        case _:
            return ast.unparse(node)


def main(kinds: list[str]) -> None:
    """Print the list, of all kinds or of those named."""
    for line in list_lines():
        if not kinds or line.kind in kinds:
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
