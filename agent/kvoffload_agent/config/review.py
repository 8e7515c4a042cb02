"""Identities in a cluster: one TokenReview for each token, remembered for a minute."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from kvoffload_agent.kube.client import KubeClient, KubeError
from kvoffload_agent.server.identity import Identity, IdentityError
from kvoffload_agent.server.listener import Peer

AUDIENCE: Final = "kvoffload"
PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
# A pod's workers say hello within a moment of each other; a deleted pod's token is refused by the
# API server at once, so an answer must not live long.
CACHE_SECONDS: Final = 60.0
CACHE_SIZE: Final = 1024
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_USER_PREFIX: Final = "system:serviceaccount:"


class TokenReviewIdentifier:
    """Asks the API server whose token it is. Refusals are not remembered, answers are."""

    def __init__(
        self,
        *,
        client: KubeClient,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()

    async def identify(self, *, token: str, peer: Peer) -> Identity:  # noqa: ARG002 - uids differ in user namespaces
        """Return the pod that a projected token belongs to.

        Raises:
            IdentityError: there is no token, it is not valid for this audience, it is bound to no
                pod or to one of another node, or the API server does not answer.
        """
        if not token:
            raise IdentityError(
                "no token: mount a projected ServiceAccount token with audience"
                f" {AUDIENCE} and name its file in KVOFFLOAD_TOKEN_FILE"
            )
        # Tokens are secrets: what is kept can't be used again.
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        identity = identity_of(await self._review(token), node_name=self._node_name)
        self._known[key] = (self._clock() + CACHE_SECONDS, identity)
        self._known.move_to_end(key)
        while len(self._known) > CACHE_SIZE:
            self._known.popitem(last=False)
        return identity

    async def _review(self, token: str) -> Any:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            return await self._client.request("POST", PATH, body=body)
        except KubeError as error:
            raise IdentityError(f"the token can't be reviewed now: {error}") from error


def identity_of(review: Any, *, node_name: str) -> Identity:
    """Read a TokenReview's answer.

    Raises:
        IdentityError: it does not name a pod of this node that may talk to this agent.
    """
    status = review.get("status") or {}
    if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or ()):
        reason = status.get("error") or "it is not authenticated"
        raise IdentityError(f"the token is not valid for audience {AUDIENCE}: {reason}")
    user = status.get("user") or {}
    username, extra = str(user.get("username", "")), user.get("extra") or {}
    namespace, _, account = username.removeprefix(_USER_PREFIX).partition(":")
    if not username.startswith(_USER_PREFIX) or not account:
        raise IdentityError(f"{username!r} is no ServiceAccount")
    pod, uid = _first(extra, POD_NAME), _first(extra, POD_UID)
    if not pod or not uid:
        raise IdentityError("the token is bound to no pod: use a projected token of the pod")
    node = _first(extra, NODE_NAME)
    if node and node != node_name:
        raise IdentityError(f"pod {namespace}/{pod} runs on node {node}, this is {node_name}")
    return Identity(namespace=namespace, pod=pod, uid=uid)


def _first(extra: Any, name: str) -> str:
    values = extra.get(name) or ()
    return str(values[0]) if values else ""
