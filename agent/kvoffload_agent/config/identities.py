"""Standalone identities: which local process stands for which pod.

``identities.yaml`` in the policy directory maps tokens and uids:

    identities:
    - token: s3cret-a
      namespace: team-a
      name: chat-0
      labels: {app: vllm}
    - uid: 1000
      namespace: team-b
      name: batch-0
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kvoffload_agent.server.identity import Identity, IdentityError
from kvoffload_agent.server.listener import Peer

FILE_NAME: Final = "identities.yaml"


class IdentityEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One local engine; exactly one of ``token`` and ``uid`` is set."""

    namespace: str
    name: str
    token: str | None = None
    uid: int | None = None
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Raises: ValueError: both or none of token and uid are set, or a name is empty."""
        if (self.token is None) == (self.uid is None):
            raise ValueError("set exactly one of `token` and `uid`")
        if not self.namespace or not self.name or self.token == "":
            raise ValueError("`namespace`, `name` and `token` must not be empty")

    @property
    def identity(self) -> Identity:
        """The pod that it stands for."""
        return Identity(
            namespace=self.namespace,
            pod=self.name,
            uid=f"local/{self.namespace}/{self.name}",
            labels=self.labels,
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    identities: list[IdentityEntry]


def parse_identities(document: Any) -> list[IdentityEntry]:
    """Return the entries of a loaded ``identities.yaml``.

    Raises:
        ValueError: it has another form, or a token or uid stands twice.
    """
    entries = msgspec.convert(document, _File).identities
    for name in ("token", "uid"):
        values = [value for entry in entries if (value := getattr(entry, name)) is not None]
        if len(set(values)) != len(values):
            raise ValueError(f"a `{name}` stands twice")
    return entries


class StandaloneIdentifier:
    """Token first, then uid, then the namespace that this agent was given for everybody else.

    A token that is set and unknown is refused where tokens are in use: falling back to the uid
    could put an engine into another tenant's namespace.
    """

    def __init__(
        self,
        *,
        entries: Callable[[], Sequence[IdentityEntry]],
        uid_namespaces: Mapping[int, str],
        namespace: str | None,
    ) -> None:
        self._entries = entries
        self._uid_namespaces = uid_namespaces
        self._namespace = namespace

    async def identify(self, *, token: str, peer: Peer) -> Identity:
        """Return who a local process stands for.

        Raises:
            IdentityError: its token is unknown, or nothing maps its uid.
        """
        entries = self._entries()
        tokens = [entry for entry in entries if entry.token is not None]
        if token and tokens:
            for entry in tokens:
                if hmac.compare_digest((entry.token or "").encode(), token.encode()):
                    return entry.identity
            raise IdentityError(f"the token stands in no entry of {FILE_NAME}")
        for entry in entries:
            if entry.uid == peer.uid:
                return entry.identity
        namespace = self._uid_namespaces.get(peer.uid, self._namespace)
        if namespace is None:
            raise IdentityError(
                f"uid {peer.uid} has no namespace: add it to {FILE_NAME}, or start the agent with"
                f" --uid-namespace {peer.uid}=NAMESPACE or --namespace"
            )
        name = f"uid-{peer.uid}"
        return Identity(namespace=namespace, pod=name, uid=f"local/{namespace}/{name}")
