"""Every optimizer of the union can be named by a user and stands in the reference."""

from pathlib import Path
from typing import get_args

import rover_bus.client as client
from rover_bus.ps.spec import Optimizer

API = Path(__file__).parents[3] / "docs/api.md"


def test_each_is_a_name_of_the_client_library_and_of_its_reference():
    names = [each.__name__ for each in get_args(Optimizer)]
    assert [name for name in names if name not in client.__all__] == []
    text = API.read_text()
    assert [name for name in names if name not in text] == []
