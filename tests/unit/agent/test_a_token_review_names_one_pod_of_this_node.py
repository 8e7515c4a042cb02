"""What a TokenReview's answer must say before a peer is a pod."""

from __future__ import annotations

from typing import Any

import pytest

from kvoffload_agent.config.review import identity_of
from kvoffload_agent.server.identity import IdentityError


def review(**changes: Any) -> dict[str, Any]:
    status: dict[str, Any] = {
        "authenticated": True,
        "audiences": ["kvoffload"],
        "user": {
            "username": "system:serviceaccount:team-a:vllm",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["chat-0"],
                "authentication.kubernetes.io/pod-uid": ["uid-1"],
                "authentication.kubernetes.io/node-name": ["node-1"],
            },
        },
    }
    return {"status": {**status, **changes}}


def test_namespace_pod_and_uid_come_from_the_review() -> None:
    found = identity_of(review(), node_name="node-1")
    assert (found.namespace, found.pod, found.uid) == ("team-a", "chat-0", "uid-1")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": {}},
        review(authenticated=False),
        review(audiences=[]),
        review(audiences=["https://kubernetes.default.svc"]),
        review(user={"username": "admin"}),
        review(user={"username": "system:serviceaccount:team-a"}),
        review(user={"username": "system:serviceaccount:team-a:vllm"}),
        review(user={"username": "system:serviceaccount:team-a:vllm", "extra": {}}),
    ],
)
def test_anything_less_is_nobody(answer: dict[str, Any]) -> None:
    with pytest.raises(IdentityError):
        identity_of(answer, node_name="node-1")


def test_a_pod_of_another_node_is_refused() -> None:
    with pytest.raises(IdentityError, match="node-1"):
        identity_of(review(), node_name="node-2")
