"""How long an operator takes to ask: counted once for each member, by its first request, from the receipt of the fact behind it."""

from __future__ import annotations

import asyncio

from rover_bus.kube.reactions import Reaction, Reactions, note_sent
from rover_bus.node.turns import Turns


def counted(reactions: Reactions) -> int:
    return sum(reactions.profile("me", 1.0).reactions)


def test_the_first_request_for_a_member_counts_and_no_other() -> None:
    async def main() -> None:
        reactions, ordered = Reactions(), list[Reaction]()
        turns = Turns(lambda: ordered.append(reactions.begin()))
        turns.begin()
        turns.soon(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        turns.end()
        note_sent()
        assert counted(reactions) == 0, "a request for no member"
        for _ in range(2):
            with ordered[0].awaited():
                note_sent()
                note_sent()
        assert counted(reactions) == 1
        said = reactions.profile("me", 1.0)
        assert said.reactions[0] == 0, "it took longer than the first bound, 5 ms"
        assert said.reacted_s >= 0.01

    asyncio.run(main())


def test_what_no_fact_asked_for_counts_nothing() -> None:
    """A member that is started again after a pause, or found by a successor."""

    async def main() -> None:
        reactions = Reactions()
        for each in (reactions.nothing, reactions.begin()):
            with each.awaited():
                note_sent()
        assert counted(reactions) == 0

    asyncio.run(main())
