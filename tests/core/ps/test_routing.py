"""Which of two routing tables replaces the other."""

from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.ps.routing import is_newer


def table(generation, epoch, *incarnations, timeline=1):
    servers = [
        ServerAddress(index=index, incarnation=incarnation, addresses=["tcp:a"])
        for index, incarnation in enumerate(incarnations)
    ]
    return RoutingTable(timeline=timeline, generation=generation, epoch=epoch, owners=[], servers=servers)


def test_a_later_version_replaces_and_a_repeat_does_not():
    assert is_newer(table(0, 1, 1), None)
    assert is_newer(table(1, 1, 1, 1), table(0, 7, 4, 4))
    assert not is_newer(table(1, 1, 1, 2), table(1, 1, 1, 2))
    assert is_newer(table(0, 1, 1, timeline=2), table(3, 1, 9))


def test_numbers_that_are_used_again_after_a_power_cut_are_told_apart_by_the_incarnations():
    """The log lost two rewinds and made them again: workers that knew the first of them hung on servers that were gone."""
    lost, again = table(2, 1, 1, 3), table(2, 1, 2, 4)
    assert is_newer(again, lost)
    assert not is_newer(lost, again)
