"""`rover auth add --store` on a running stack: a tenant's limit is listed and scraped; more than the broker has left is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from all_rights import connect
from asked_page import AskedPage, page_of
from outside import rover
from patience import until
from prometheus_client.parser import text_string_to_metric_families

from rover_bus.cli.own_broker import LOOPBACK, OwnBroker
from rover_bus.cli.stack import Here, OtherBroker, RunningStack
from rover_bus.events import subjects
from rover_bus.events.streams import LOG

STORE_BYTES = 1 << 30
TENANTS_STORE = "64MiB"
MESSAGES, MESSAGE_BYTES = 110, 500_000  # more than four fifths of it


@pytest.mark.broker
def test_a_limit_is_kept_and_one_that_the_broker_cannot_set_aside_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ".rover"
    with RunningStack(home, broker=OwnBroker(max_file_store_bytes=STORE_BYTES)):
        unlimited = rover("auth", "add", "ads", home=home)
        assert (unlimited.returncode, "ads may fill the whole store" in unlimited.stderr) == (0, True)
        assert "may fill the whole store, which stops every job: ads" in rover("doctor", home=home).stdout
        limited = rover("auth", "add", "ads", "--store", "64MiB", home=home)
        assert (limited.returncode, limited.stderr) == (0, "")
        assert "may fill the whole store" not in rover("doctor", home=home).stdout
        # Two of 64 MiB are set aside, and their copies: what is left is for the tenant and its copies, half each.
        refused = rover("auth", "add", "maps", "--store", "500MiB", home=home)
        assert refused.returncode == 2
        assert "MiB for each are left" in refused.stderr
        assert rover("auth", "add", "maps", "--store", "1MiB", home=home).returncode == 2
        done = rover("auth", "add", "ads", "--store", "128MiB", home=home)
        assert done.returncode == 0, done.stderr
        listed = json.loads(rover("auth", "list", "-o", "json", home=home).stdout)
        assert {each["tenant"]: each["store_bytes"] for each in listed}["ads"] == 128 << 20


def stored(page: AskedPage) -> dict[str, float]:
    """Return what is scraped of stores, a tenant's series by its name."""
    families = text_string_to_metric_families(page.ask("/metrics").body.decode())
    samples = [sample for family in families for sample in family.samples if "store_" in sample.name]
    return {" ".join([each.name, *each.labels.values()]): each.value for each in samples}


@pytest.mark.broker
def test_what_is_stored_and_may_be_is_scraped_of_the_broker_and_of_each_tenant(tmp_path: Path) -> None:
    home, wanted = tmp_path / ".rover", OwnBroker(max_file_store_bytes=STORE_BYTES)
    with RunningStack(home, broker=wanted, here=Here(page=LOOPBACK)) as stack:
        page = page_of(stack)
        assert rover("auth", "add", "ads", "--store", "64MiB", home=home).returncode == 0
        until(lambda: stored(page).get("rover_tenant_store_bytes ads"), "a look at the store", 0.2)
        found = stored(page)
        assert found["rover_store_limit_bytes"] == STORE_BYTES
        assert found["rover_tenant_store_limit_bytes ads"] == 64 << 20
        assert found["rover_tenant_store_limit_bytes default"] == 0
        of_tenants = [found[f"rover_tenant_store_bytes {tenant}"] for tenant in ("ads", "default")]
        assert found["rover_store_bytes"] == sum(of_tenants) > 0


async def fill(home: Path, tenant: str) -> None:
    """Store messages in a tenant's account, of a stream that the control account has no copy of."""
    bus = await connect(home)
    try:
        for number in range(MESSAGES):
            await bus.of(tenant).append(LOG, subjects.job_log(f"a{number}"), bytes(MESSAGE_BYTES))
    finally:
        await bus.close()


def store_lines(home: Path) -> dict[str, str]:
    """Return what `rover doctor` says of stores, with its verdict, by what it is said of."""
    said = [line.split(maxsplit=1) for line in rover("doctor", home=home).stdout.splitlines()]
    return {each.partition(":")[0]: f"{mark} {each}" for mark, each in said if each.startswith("store")}


@pytest.mark.broker
def test_doctor_counts_the_accounts_of_all_tenants_against_the_limit_of_the_broker(tmp_path: Path) -> None:
    home, wanted = tmp_path / ".rover", OwnBroker(max_file_store_bytes=STORE_BYTES)
    with RunningStack(home, broker=wanted, brain=None):
        assert rover("auth", "add", "ads", "--store", TENANTS_STORE, home=home).returncode == 0
        asyncio.run(fill(home, "ads"))
        said = store_lines(home)
        assert said.keys() == {"store of 2 accounts", "store of tenant ads"}
        whole = said["store of 2 accounts"]
        assert whole.startswith("ok ")
        assert f" of {STORE_BYTES >> 20:,} MiB (" in whole
        assert float(whole.partition(": ")[2].partition(" MiB")[0]) > MESSAGES * MESSAGE_BYTES / 2**20
        assert said["store of tenant ads"].startswith("bad ")
        assert " of 64 MiB (8" in said["store of tenant ads"]


@pytest.mark.broker
def test_what_another_broker_may_store_is_as_it_is_told(tmp_path: Path) -> None:
    with RunningStack(tmp_path / "first", brain=None) as first:
        other = OtherBroker(first.url, first.secret_file, STORE_BYTES)
        here = Here("second", page=LOOPBACK)
        with RunningStack(tmp_path / "second", broker=other, brain=None, here=here) as stack:
            page = page_of(stack)
            until(lambda: page.ready, "the page")
            assert stored(page)["rover_store_limit_bytes"] == STORE_BYTES
            assert f" of {STORE_BYTES >> 20:,} MiB (" in store_lines(tmp_path / "second")["store"]
