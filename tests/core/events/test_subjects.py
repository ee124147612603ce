"""The subjects of facts and their types name each other."""

from __future__ import annotations

import pytest

from rover_bus.cli.schemas import address_of
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS
from rover_bus.events.errors import NameRefused
from rover_bus.events.fact import Fact
from rover_bus.events.facts import FACTS
from rover_bus.events.subjects import (
    everywhere,
    file_name,
    into_tenant,
    job_fact,
    job_facts,
    job_name,
    matches,
    of_tenant,
    parse,
    qualified,
    split_job,
)


@pytest.mark.parametrize("cls", [*FACTS, *CHECKPOINT_FACTS], ids=lambda cls: cls.tag())
def test_a_fact_is_found_by_its_type_on_its_subject(cls: type[Fact]) -> None:
    parsed = parse(address_of(cls.tag(), cls).format(job="ads", host="h"))
    assert parsed is not None
    assert f"{parsed.noun_verb}.v1" == cls.tag()


@pytest.mark.parametrize(
    ("subject", "tenant", "job", "kind"),
    [
        ("rover.job.j.plan.applied", "", "j", "plan.applied"),
        ("tenant.ads.rover.job.j.plan.applied", "ads", "ads/j", "plan.applied"),
        ("tenant.into.rover.job.j.plan.applied", "into", "into/j", "plan.applied"),
        ("tenant.ads.rover.host.h.exited", "ads", "", "exited"),
        ("tenant.ads.rover.keeper.j.purge", "ads", "ads/j", "purge"),
    ],
)
def test_a_tenants_subject_says_whose_it_is(subject: str, tenant: str, job: str, kind: str) -> None:
    parsed = parse(subject)
    assert parsed is not None
    assert (parsed.tenant, parsed.job and parsed.full_job, parsed.kind) == (tenant, job, kind)


@pytest.mark.parametrize(
    "subject",
    [
        "tenant.ads",
        "tenant.ads.into",
        "tenant.ads.into.rover.job.j.plan.applied",
        "tenant.ads.$JS.API.INFO",
        "tenant.a.b.rover.x",
    ],
)
def test_what_is_no_subject_of_a_tenant_is_none(subject: str) -> None:
    assert parse(subject) is None


def test_a_job_of_a_tenant_is_named_by_both_and_is_none_of_another() -> None:
    assert qualified("ads", "j") == "ads/j"
    assert qualified("default", "j") == qualified("", "j") == "j"
    assert split_job("ads/j") == ("ads", "j")
    assert split_job("j") == ("default", "j")
    assert file_name("ads/j") == "ads@j"
    for wrong in ("ads/j/k", "/j", "ads/", "ads/*", "a.b/j", "../j"):
        with pytest.raises(NameRefused):
            job_name(wrong)


def test_a_filter_for_all_takes_the_accounts_own_and_every_tenants() -> None:
    own, tenants = everywhere(job_facts(kind="plan.proposed"))
    subject = job_fact("j", "plan.proposed")
    assert [matches(own, each) for each in (subject, of_tenant("ads", subject))] == [True, False]
    assert [matches(tenants, each) for each in (subject, of_tenant("ads", subject))] == [False, True]
    assert not matches(tenants, into_tenant("ads", subject))
