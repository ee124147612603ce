"""The table of roles: each kind of fact has its writers, programs have no right to a stream, tags stand for one job alone."""

from __future__ import annotations

from typing import get_args

import pytest

from rover_bus.auth import accounts, rights, roles
from rover_bus.auth.rights import HOST, JOB, filled
from rover_bus.auth.roles import ROLES
from rover_bus.brain.log import BrainDecided
from rover_bus.events import subjects
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS
from rover_bus.events.fact import Fact
from rover_bus.events.facts import FACTS
from rover_bus.events.host_facts import ClusterFact, HostFact
from rover_bus.master import service as master_service

SIGNERS = [accounts.Signer("A", role) for role in ROLES]
EVERY_FACT = (*FACTS, *CHECKPOINT_FACTS)


def subject_of(kind: type[Fact]) -> str:
    if issubclass(kind, HostFact):
        return subjects.host_fact("h1", kind.kind())
    if issubclass(kind, ClusterFact):
        return subjects.cluster_fact(kind.kind())
    return subjects.job_fact("demo", kind.kind())


def publishers(subject: str) -> set[str]:
    return {
        role.name
        for role in ROLES.values()
        for right in role.rights
        if right.action == "publish" and subjects.matches(filled(right.subject, "demo", "h1"), subject)
    }


@pytest.mark.parametrize("kind", EVERY_FACT, ids=lambda kind: kind.kind())
def test_every_fact_has_a_writer_and_none_of_them_is_a_member_that_runs_a_program(kind: type[Fact]) -> None:
    writers = publishers(subject_of(kind))
    assert writers
    assert not writers & {"worker", "ps", "observer", "viewer"}


def test_what_the_brain_decides_it_may_publish() -> None:
    for kind in get_args(BrainDecided):
        assert "brain" in publishers(subject_of(kind)), kind


def test_what_a_daemon_runs_is_desired_by_masters_alone() -> None:
    assert publishers(subjects.job_fact("demo", "members.desired")) == {"master"}


def test_a_master_may_hear_what_its_members_ask() -> None:
    heard = [filled(right.subject, "demo") for right in ROLES["master"].rights if right.action == "subscribe"]
    for method in master_service.METHODS:
        assert any(subjects.matches(each, subjects.rpc("demo", 3, method)) for each in heard)


def test_a_host_that_asks_to_join_may_do_nothing_else() -> None:
    [right] = ROLES["joiner"].rights
    assert (right.action, filled(right.subject, user="UKEY")) == ("request", "rover.registrar.UKEY.join")
    assert ROLES["joiner"].permissions()["pub"]["allow"] == ["rover.registrar.{{subject()}}.join"]


def test_what_all_nodes_share_may_ask_for_an_agents_rights_and_do_nothing_else() -> None:
    [right] = ROLES["applicant"].rights
    assert (right.action, filled(right.subject, user="UKEY")) == ("request", "rover.registrar.UKEY.agent")


def test_a_spare_asks_which_worker_it_becomes_and_does_nothing_else_and_no_member_asks_it() -> None:
    [right] = ROLES["spare"].rights
    assert (right.action, filled(right.subject, "ads", "h1")) == ("request", subjects.spares("h1", "ads"))
    asked = {each.subject for name in roles.MEMBER_ROLES for each in ROLES[name].rights}
    assert not any(subjects.matches(subjects.spares("*", "*"), subject) for subject in asked)


def test_an_agent_says_nothing_of_members_and_writes_of_its_own_host_alone() -> None:
    written = {right.subject for right in ROLES["agent"].rights if right.action == "publish"}
    assert not {
        subject for subject in written if subject.split(".")[-1] in ("started", "exited", "registered")
    }
    about = {subject for subject in written if "$JS.FC" not in subject}
    assert all(HOST in subject for subject in about)


@pytest.mark.parametrize("name", ["worker", "ps", "spare", "joiner", "applicant"])
def test_programs_stand_in_an_account_without_streams(name: rights.RoleName) -> None:
    claims = accounts.members_claims(SIGNERS, "default", "A", "A")
    assert ROLES[name].account == "members"
    assert "streams" not in claims["limits"]


def test_members_reach_nothing_of_the_control_account_that_no_role_of_theirs_has() -> None:
    claims = accounts.members_claims(SIGNERS, "default", "A", "A")
    reached = {each["subject"] for each in claims["imports"]}
    rights = [
        right.subject
        for name in ("worker", "ps", "spare", *roles.ASKING_ROLES)
        for right in ROLES[name].rights
    ]
    assert reached == {filled(subject, "*", "*", "*") for subject in rights}
    assert not any("CONSUMER" in subject or "STREAM" in subject for subject in reached)


@pytest.mark.parametrize("tenant", ["default", "ads"])
def test_what_only_looks_stands_in_an_account_without_streams_and_reaches_reads_alone(tenant: str) -> None:
    claims = accounts.observers_claims(SIGNERS, tenant, {"ads": "A", "maps": "M"}, "C")
    assert "streams" not in claims["limits"]
    reached = {each["subject"] for each in claims["imports"]}
    calls = {subject.removeprefix("$JS.API.") for subject in reached if subject.startswith("$JS.")}
    asked = {"STREAM.MSG.GET.*", "STREAM.INFO.*", "INFO", "STREAM.NAMES", "STREAM.LIST"}
    assert calls >= asked
    assert {call.split(".")[0] for call in calls - asked} == {"DIRECT"}
    if tenant == "ads":
        assert {each["account"] for each in claims["imports"]} == {"A", "C"}


def test_the_control_account_offers_members_and_observers_what_they_have_a_right_to_and_nothing_else() -> (
    None
):
    offered = {each["subject"] for each in accounts.control_claims(SIGNERS, {})["exports"]}
    members = {each["subject"] for each in accounts.members_claims(SIGNERS, "default", "A", "A")["imports"]}
    observers = {
        each["subject"] for each in accounts.observers_claims(SIGNERS, "default", {}, "A")["imports"]
    }
    taken = members | observers
    assert all(any(subjects.matches(each, subject) for each in offered) for subject in taken)
    assert all(any(subjects.matches(each, subject) for subject in taken) for each in offered)


@pytest.mark.parametrize("name", ["observer", "viewer"])
def test_what_only_looks_has_no_right_to_make_a_consumer_or_anything_else(name: rights.RoleName) -> None:
    for right in ROLES[name].rights:
        assert right.action != "publish"
        assert not {"CREATE", "DELETE", "UPDATE", "PURGE", "CONSUMER", "RESTORE"} & set(
            right.subject.split(".")
        )


def test_a_tenant_reaches_daemons_the_keeper_and_two_buckets_of_the_control_account_and_no_other_tenant() -> (
    None
):
    reached = accounts.tenant_claims(SIGNERS, "ads", "C")["imports"]
    assert {each["account"] for each in reached} == {"C"}
    own = ("tenant.ads.rover.daemon.>", "tenant.ads.rover.keeper.>")
    looked_up = ("$JS.API.DIRECT.GET.KV_ROVER_PRESENCE", "$JS.API.DIRECT.GET.KV_ROVER_SETTINGS")
    assert {
        each["subject"].removesuffix(".>") + ".>" * each["subject"].startswith("tenant") for each in reached
    } == {
        *own,
        *looked_up,
    }
    members = accounts.members_claims(SIGNERS, "ads", "T", "C")["imports"]
    assert {each["subject"] for each in members if each["account"] != "T"} == {own[0]}
    assert "streams" not in accounts.members_claims(SIGNERS, "ads", "T", "C")["limits"]


def test_the_control_account_offers_nothing_more_before_there_is_a_tenant() -> None:
    alone = accounts.control_claims(SIGNERS, {})
    assert alone["imports"] == []
    assert not [each for each in alone["exports"] if each["subject"].startswith("tenant.")]


def test_a_key_of_one_tenant_signs_nothing_of_another() -> None:
    signers = [
        accounts.Signer(f"K{tenant}", "master", "demo", tenant) for tenant in ("default", "ads", "maps")
    ]
    keys = {each["key"] for each in accounts.tenant_claims(signers, "ads", "C")["signing_keys"]}
    assert keys == {"Kads"}
    control = accounts.control_claims(signers, {"ads": "A", "maps": "M"})
    assert {each["key"] for each in control["signing_keys"]} == {"Kdefault"}


@pytest.mark.parametrize("role", ROLES.values(), ids=lambda role: role.name)
def test_no_role_may_hear_the_answers_of_others(role: rights.Role) -> None:
    """An empty list would allow everything, and `_INBOX.>` all answers."""
    heard = role.permissions()["sub"]["allow"]
    assert [each for each in heard if each.startswith("_INBOX")] == ["_INBOX.{{subject()}}.>"]
    assert ">" not in heard
    assert role.permissions()["pub"]["allow"]


@pytest.mark.parametrize("role", [ROLES[name] for name in roles.MEMBER_ROLES], ids=lambda role: role.name)
def test_a_member_has_rights_to_its_own_job_only(role: rights.Role) -> None:
    for right in role.rights:
        if right.subject.startswith("rover."):
            assert {JOB, HOST} & set(right.subject.split(".")), right


def test_purges_and_streams_are_for_the_brain_and_the_operator() -> None:
    calls = {
        role.name
        for role in ROLES.values()
        if any(".STREAM.PURGE." in right.subject for right in role.rights)
    }
    assert calls == {"brain", "operator"}
    every = {right.subject for role in ROLES.values() for right in role.rights}
    assert not [subject for subject in every if "DELETE" in subject and "CONSUMER" not in subject]
    assert not [subject for subject in every if "UPDATE" in subject or "RESTORE" in subject]
