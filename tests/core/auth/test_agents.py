"""A node's agent: what it asks is for the operators alone, what it gets is for itself alone, and is of one host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rover_bus.auth.agents import AgentKeys, AgentVault, parse_pass, parts_secret, read_pass, write_pass
from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied, InputError


@pytest.fixture
def vault(tmp_path: Path) -> AgentVault:
    return AgentVault(tmp_path / "auth")


def test_a_pass_is_read_as_it_was_written_and_what_is_none_is_refused(
    vault: AgentVault, tmp_path: Path
) -> None:
    made, file = vault.shared_pass, tmp_path / "pass.json"
    file.write_text(write_pass(made))
    assert read_pass(file) == made
    for text in (b"", b"{}", b"\xff", write_pass(made).replace("agent_pass", "join_token").encode()):
        with pytest.raises(InputError, match="prepare --agents"):
            parse_pass(text)
    with pytest.raises(InputError, match="cannot read"):
        read_pass(tmp_path / "none")


def test_an_application_is_read_where_the_keys_of_its_stack_are_and_nowhere_else(
    vault: AgentVault, tmp_path: Path
) -> None:
    sealed = AgentKeys(vault.shared_pass).apply("a token")
    assert b"a token" not in sealed
    assert vault.read(sealed).token == "a token"
    assert AgentVault(vault.root).read(sealed).token == "a token", "of two operators each reads it"
    with pytest.raises(InputError, match="another stack"):
        AgentVault(tmp_path / "other").read(sealed)


def test_a_grant_is_read_by_its_asker_alone_and_holds_no_secret_of_other_uses(vault: AgentVault) -> None:
    keys, others = AgentKeys(vault.shared_pass), AgentKeys(vault.shared_pass)
    sealed = vault.grant_agent(vault.read(keys.apply("t")), "n1", valid_s=60)
    with pytest.raises(AccessDenied):
        others.unseal(sealed)
    grant = keys.unseal(sealed)
    shown = keys.credential(grant)
    assert grant.host == "n1"
    assert time.time() < shown.expires_s <= time.time() + 60
    assert shown.sockets.encode() == parts_secret(vault)
    secret = vault.host_secret.decode()
    assert secret not in credentials.write(shown)
    assert shown.sockets not in (secret, vault.job_secret("demo", "u1"))


def test_no_two_hosts_have_the_same_secret_of_message_ids(vault: AgentVault) -> None:
    """With another's, an agent could take the id of a fact of that host, which the broker would then drop."""
    keys = AgentKeys(vault.shared_pass)
    asked = vault.read(keys.apply("t"))
    first, second = (keys.unseal(vault.grant_agent(asked, host)) for host in ("n1", "n2"))
    assert first.messages != second.messages
    assert vault.message_secret("control") not in (first.messages, second.messages)
    assert keys.unseal(vault.grant_agent(asked, "n1")).messages == first.messages, (
        "a successor's repeats dedupe"
    )
