"""What may become of a file: flipped bits, a lost tail, no file, somebody else's bytes. Drawn from the generator given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Damage = Callable[[Path, random.Random], None]
MOST_FLIPS = 40


def flip(path: Path, chance: random.Random) -> None:
    """Flip single bits, in place: who has mapped the file sees them."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(chance.randint(1, MOST_FLIPS) if size else 0):
            position = chance.randrange(size)
            file.seek(position)
            [byte] = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def cut(path: Path, chance: random.Random) -> None:
    """Lose the tail, or all."""
    with path.open("r+b") as file:
        file.truncate(chance.choice((0, chance.randrange(max(path.stat().st_size, 1)))))


def vanish(path: Path, chance: random.Random) -> None:
    path.unlink(missing_ok=True)


def foreign(path: Path, chance: random.Random) -> None:
    """Other bytes in its place, and a neighbour that nobody knows."""
    path.write_bytes(chance.randbytes(chance.choice((0, 100, path.stat().st_size))))
    (path.parent / f"foreign-{chance.randrange(1000)}{path.suffix}").write_bytes(chance.randbytes(64))


DAMAGES: dict[str, Damage] = {"flip": flip, "cut": cut, "vanish": vanish, "foreign": foreign}


def hurt(kind: str, files: Sequence[Path], chance: random.Random) -> list[str]:
    """Damage one of the files, some, or all; return the names of those that were hit."""
    count = chance.choice((1, 1, max(len(files) // 2, 1), len(files))) if files else 0
    done = []
    for path in chance.sample(sorted(files), count):
        with suppress(OSError):  # its owner may have been faster
            DAMAGES[kind](path, chance)
            done.append(path.name)
    return done
