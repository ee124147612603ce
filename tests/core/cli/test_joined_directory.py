"""What commands say in the directory of a host that has joined a stack: it has no broker, no Brain and no observer of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.joining import JoiningKeys, seal
from rover_bus.auth.vault import Vault
from rover_bus.cli.commands.nats import context
from rover_bus.cli.connection import Address
from rover_bus.cli.group import rover
from rover_bus.cli.home import Home
from rover_bus.events.errors import InputError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The directory of the host `two`."""
    stack, made = Vault(tmp_path / "stack" / "auth"), Home(tmp_path / "two")
    for directory in (stack.root.parent, made.root):
        directory.mkdir()
    stack.certificate("127.0.0.2")
    keys = JoiningKeys()
    request = keys.request("two")
    grant = keys.unseal(seal(stack.grant(request), request.seal))
    HostVault(made.auth).keep(stack.join_token("tls://127.0.0.2:4222", 60), keys, grant, "two", "127.0.0.3")
    return made


@pytest.mark.parametrize(
    "option",
    [
        "--sync=always",
        "--max-store=1GiB",
        "--plan-mode=observe",
        "--policy=optimus",
        "--quota=ads=2",
        "--secret-file=f",
    ],
)
def test_what_is_said_of_broker_and_brain_is_said_on_the_stacks_machine(home: Home, option: str) -> None:
    said = CliRunner().invoke(rover, ["up", "--dir", str(home.root), option])
    assert isinstance(said.exception, InputError)
    assert f"say {option.partition('=')[0]} on its own machine" in str(said.exception)


def test_a_host_keeps_its_name(home: Home) -> None:
    said = CliRunner().invoke(rover, ["join", "--dir", str(home.root), "--name", "three"])
    assert "has joined as 'two'" in str(said.exception)


def test_no_token_is_made_where_the_keys_are_not(home: Home, tmp_path: Path) -> None:
    daemon = HostVault(home.auth).credentials_file("daemon", "two")
    words = [
        "auth",
        "token",
        "--out",
        str(tmp_path / "t"),
        "--url",
        "tls://127.0.0.2:4222",
        "--secret-file",
        str(daemon),
    ]
    said = CliRunner().invoke(rover, words)
    assert "run `rover auth token` on its own machine" in str(said.exception)
    assert not (tmp_path / "t").exists()
    assert not list((home.auth / "keys").glob("operator*"))


def test_a_context_for_people_is_made_on_the_stacks_machine(home: Home) -> None:
    daemon = HostVault(home.auth).credentials_file("daemon", "two")
    with pytest.raises(InputError, match="on the stack's own machine"):
        context(Address("tls://127.0.0.2:4222", daemon, home))
