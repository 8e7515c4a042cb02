"""Standalone identities: tokens, uids and the default namespace."""

from __future__ import annotations

import pytest

from kvoffload_agent.config.identities import (
    IdentityEntry,
    StandaloneIdentifier,
    parse_identities,
)
from kvoffload_agent.server.identity import IdentityError
from kvoffload_agent.server.listener import Peer

ENTRIES = parse_identities(
    {
        "identities": [
            {"token": "s3cret", "namespace": "team-a", "name": "chat", "labels": {"app": "x"}},
            {"uid": 1000, "namespace": "team-b", "name": "batch"},
        ]
    }
)


def peer(uid: int) -> Peer:
    return Peer(pid=1, uid=uid, gid=1)


def identifier(
    entries: list[IdentityEntry], *, namespace: str | None = None
) -> StandaloneIdentifier:
    return StandaloneIdentifier(
        entries=lambda: entries, uid_namespaces={7: "team-c"}, namespace=namespace
    )


async def test_a_token_names_its_pod_whatever_the_uid() -> None:
    found = await identifier(ENTRIES).identify(token="s3cret", peer=peer(1000))
    assert (found.namespace, found.pod, found.labels) == ("team-a", "chat", {"app": "x"})


async def test_without_a_token_the_uid_decides() -> None:
    found = await identifier(ENTRIES).identify(token="", peer=peer(1000))
    assert (found.namespace, found.pod) == ("team-b", "batch")
    found = await identifier(ENTRIES).identify(token="", peer=peer(7))
    assert found.namespace == "team-c"


async def test_an_unknown_token_is_never_taken_for_the_uid() -> None:
    with pytest.raises(IdentityError, match="token"):
        await identifier(ENTRIES, namespace="x").identify(token="other", peer=peer(1000))


async def test_an_unmapped_uid_gets_the_default_namespace_or_is_refused() -> None:
    found = await identifier(ENTRIES, namespace="local").identify(token="", peer=peer(5))
    assert found.namespace == "local"
    with pytest.raises(IdentityError, match="--uid-namespace 5=NAMESPACE"):
        await identifier(ENTRIES).identify(token="", peer=peer(5))


@pytest.mark.parametrize(
    "item",
    [
        {"namespace": "a", "name": "b"},
        {"namespace": "a", "name": "b", "token": "t", "uid": 1},
        {"namespace": "", "name": "b", "uid": 1},
        {"namespace": "a", "name": "b", "token": ""},
        {"namespace": "a", "name": "b", "uid": "1"},
        {"namespace": "a", "name": "b", "uid": 1, "extra": 1},
    ],
)
def test_a_malformed_entry_is_refused(item: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_identities({"identities": [item]})


def test_a_token_or_uid_that_stands_twice_is_refused() -> None:
    item = {"namespace": "a", "name": "b", "uid": 1}
    with pytest.raises(ValueError, match="twice"):
        parse_identities({"identities": [item, {**item, "name": "c"}]})
