"""What a parameter server's incarnation starts from, as the log admits it (protocol P5). The master names it.

In `member.admitted` and in the answer to a join; apart because facts, requests and the server's own admission all name it.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class ServerStart(msgspec.Struct, frozen=True):
    """`empty`: first values. `without_slots`: nothing, until slots move to it. `cut`: restored from one, of another `job` where
    that is named. `kept`: what it holds already, a survivor of a partial recovery (P11).
    """

    kind: Literal["empty", "without_slots", "cut", "kept"]
    generation: int = 0
    cut: int = 0
    job: str = ""

    def __str__(self) -> str:
        if self.kind == "cut":
            return f"cut:{self.cut}" + (f" of {self.job}" if self.job else "")
        return f"{self.kind.replace('_', ' ')} at generation {self.generation}"


EMPTY = ServerStart("empty")
