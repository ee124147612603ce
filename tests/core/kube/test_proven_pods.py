"""An agent's token is a service account's, and no other user's whose name looks like one."""

from __future__ import annotations

import json

import pytest

from rover_bus.events.errors import InputError
from rover_bus.kube.agents import AUDIENCE, NODE, POD, POD_UID, read_review
from rover_bus.kube.kinds import Ref


def review(username: str, **without: bool) -> bytes:
    extra = {POD: ["agent-x"], POD_UID: ["1-2"], NODE: ["node-1"]}
    status = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": username, "extra": extra}}
    return json.dumps({"status": {**status, **without}}).encode()


def test_a_pod_is_vouched_for_with_its_account_and_node() -> None:
    proven = read_review(review("system:serviceaccount:rover:agents"))
    assert (proven.account, proven.node) == (Ref("rover", "agents"), "node-1")


@pytest.mark.parametrize(
    "username",
    ["rover:agents", "evil-system:serviceaccount:rover:agents", "system:serviceaccount:rover", "admin", ""],
)
def test_a_user_that_is_no_service_account_proves_nothing(username: str) -> None:
    with pytest.raises(InputError):
        read_review(review(username))


def test_a_token_that_is_not_believed_proves_nothing() -> None:
    with pytest.raises(InputError):
        read_review(review("system:serviceaccount:rover:agents", authenticated=False))
