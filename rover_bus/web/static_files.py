"""The files of the page, read once. They are the same in every installation, so they ask for no token; what they show does.

Feeds server.py. ES modules as they are written: there is no build step.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """One file, and what a browser takes it for."""

    body: bytes
    kind: str


FILES: dict[str, StaticFile] = {
    each.name: StaticFile(each.read_bytes(), _KINDS[each.name.rpartition(".")[2]])
    for each in files("rover_bus.web").joinpath("static").iterdir()
    if each.name.rpartition(".")[2] in _KINDS
}
