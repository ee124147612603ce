"""`rover auth add --store` on a running stack: a tenant's limit is listed and scraped; more than the broker has left is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asked_page import AskedPage, page_of
from outside import rover
from patience import until
from prometheus_client.parser import text_string_to_metric_families

from rover_bus.cli.own_broker import LOOPBACK, OwnBroker
from rover_bus.cli.stack import Here, RunningStack

STORE_BYTES = 1 << 30


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
