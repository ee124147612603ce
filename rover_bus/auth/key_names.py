"""What the keys of a vault are called: the operator's, and those of the accounts of a stack and of its tenants."""

from __future__ import annotations

from collections.abc import Iterable

from rover_bus.events.subjects import DEFAULT_TENANT
from rover_bus.events.subjects import name as check_name

ROOT, SYSTEM = "operator", "account-system"  # keys: of NATS's operator, which signs all accounts
CONTROL, MEMBERS = "account-control", "account-members"
TENANT, OBSERVERS = "account-tenant", "account-observers"


def account_of(tenant: str) -> str:
    """Return the key of the account that holds a tenant's streams."""
    return CONTROL if tenant == DEFAULT_TENANT else f"{TENANT}-{check_name(tenant, 'tenant')}"


def members_of(tenant: str) -> str:
    """Return the key of the account of a tenant's members."""
    return MEMBERS if tenant == DEFAULT_TENANT else f"{MEMBERS}-{check_name(tenant, 'tenant')}"


def observers_of(tenant: str) -> str:
    """Return the key of the account of those who only look at a tenant; at `default`: at all."""
    return OBSERVERS if tenant == DEFAULT_TENANT else f"{OBSERVERS}-{check_name(tenant, 'tenant')}"


def people_of(tenant: str, role: str) -> str:
    """Return the key that signs the people of a tenant in a role."""
    return f"people-{role}-{check_name(tenant, 'tenant')}"


def accounts_of(tenant: str) -> tuple[str, str, str]:
    """Return the keys of all accounts of a tenant, each after those that it imports from."""
    return account_of(tenant), members_of(tenant), observers_of(tenant)


def changed_with(tenants: Iterable[str]) -> list[str]:
    """Return the accounts that are others once these tenants are made, have other limits, or are none any more (beside `default`).

    What imports from all tenants comes last: a broker waits in vain for one that it imports from and is not told of.
    """
    return [*(each for tenant in tenants for each in accounts_of(tenant)), CONTROL, OBSERVERS]


def importing_from(accounts: Iterable[str], tenants: Iterable[str]) -> list[str]:
    """Return accounts, and all that import anything from one of them. `tenants`: that there are, beside `default`.

    Each after those that it imports from; of the two that import from one another, the control account comes before a tenant's
    where it is named, and after it where it is not.
    """
    tenants, named = list(tenants), list(accounts)
    if CONTROL in named:
        return [CONTROL, MEMBERS, *(each for tenant in tenants for each in accounts_of(tenant)), OBSERVERS]
    of = [each for tenant in tenants if account_of(tenant) in named for each in accounts_of(tenant)]
    return list(dict.fromkeys([*named, *of, *((CONTROL, OBSERVERS) if of else ())]))
