"""What a command was told, as the words of a service's command line: for commands that become that service (serve.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def words_of(named: Mapping[str, str], **repeated: Sequence[str]) -> list[str]:
    """Return what a command was given in words. `directory` is `--dir`; what was left out is left out."""
    words = [word for key, values in repeated.items() for value in values for word in (f"--{key}", value)]
    for key, value in named.items():
        if value:
            words += [f"--{'dir' if key == 'directory' else key.replace('_', '-')}", value]
    return words
