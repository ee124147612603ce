"""Where a storage is: a directory, or an address in an object store. Names below it, and the port to its files.

Fed with what job files, orders and users say; feeds `storage`, node daemons, servers that restore and `rover checkpoint`. It is
apart so that no caller wraps an address in a Path, which would take one of its slashes; it loads no numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rover_bus.events.errors import InputError

if TYPE_CHECKING:
    from rover_bus.flash.files import Files

SCHEMES = ("s3", "gs", "az")
Location = Path | str  # a str is an address


def is_address(text: str) -> bool:
    """Whether a text names a place in an object store, or means to."""
    return "://" in text


def parse_location(text: str | Path) -> Location:
    """Return the place that a text names. Raises InputError for a scheme that is unknown here."""
    if isinstance(text, Path) or not is_address(text):
        return Path(text)
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES or not rest.strip("/"):
        known = ", ".join(f"{each}://bucket/prefix" for each in SCHEMES)
        raise InputError(f"{text!r} is no storage: a directory, or one of {known}")
    return text.rstrip("/")


def below(location: Location, name: str) -> Location:
    """Return the place of a name below another place."""
    return location / name if isinstance(location, Path) else f"{location}/{name}"


def last_name(location: Location) -> str:
    """Return the last name of a place."""
    return location.name if isinstance(location, Path) else location.rpartition("/")[2]


def open_files(location: Location) -> Files:
    """Return the port to the files of a place. Raises InputError where an object store cannot be used."""
    if isinstance(location, Path):
        from rover_bus.flash.files import DirectoryFiles

        return DirectoryFiles(location)
    from rover_bus.flash.objects import ObjectFiles

    return ObjectFiles(location)
