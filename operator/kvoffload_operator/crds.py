"""Waits until the API server answers, lets us in, and serves our kinds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kvoffload_api.names import GROUP, VERSION
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import AccessError, ClusterError, NotFoundError, RequestError
from kvoffload_operator.kube.resources import NAMESPACES, NODES, PODS
from kvoffload_operator.resources import CLUSTER_POLICIES, OFFLOAD_NODES, POLICIES

log = structlog.get_logger(__name__)

INSTALL_CRDS: Final = "kubectl apply --server-side -f crds/generated/"
# Who installs CRDs and operator together waits for this; a start-up probe allows minutes.
_POLL_S: Final = 2.0
# Often enough that the end of a log says why nothing happens.
_TELL_AGAIN_S: Final = 60.0
_OURS: Final = (POLICIES, CLUSTER_POLICIES, OFFLOAD_NODES)
_STRANGER: Final = "it answers, but not as a Kubernetes API server"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why it is too early to start.

    Attributes:
        event: Name of the log record.
        err: What is wrong.
        hint: What a person can do.
    """

    event: str
    err: str
    hint: str


async def wait_for_crds(
    client: KubeClient,
    *,
    server: str,
    reads: Sequence[str] = (),
    poll_s: float = _POLL_S,
    tell_again_s: float = _TELL_AGAIN_S,
) -> None:
    """Return when all three kinds are served and may be read, and say what is missing until then.

    kopf looks for its kinds only once: started too early it would never see them.

    Args:
        client: Open client.
        server: Its URL, for the log.
        reads: Paths of more objects that must be readable, if they exist.
        poll_s: Seconds between two looks.
        tell_again_s: Seconds after which the same trouble is told again.

    Raises:
        AccessError: The server refused our credentials, or a right that every start needs.
    """
    told: Trouble | None = None
    told_at = 0.0
    while (trouble := await _trouble(client)) is not None:
        now = asyncio.get_running_loop().time()
        if trouble != told or now - told_at >= tell_again_s:
            log.warning(
                trouble.event, server=server, err=trouble.err, hint=trouble.hint, retry_s=poll_s
            )
            told, told_at = trouble, now
        await asyncio.sleep(poll_s)
    await _check_rights(client, reads=reads)


async def _trouble(client: KubeClient) -> Trouble | None:
    try:
        answer = await client.request("GET", f"/apis/{GROUP}/{VERSION}")
    except NotFoundError:
        return await _not_served(client)
    except (ClusterError, RequestError) as error:
        return _waiting_for_server(str(error))
    try:
        missing = {kind.plural for kind in _OURS} - {item["name"] for item in answer["resources"]}
    except (KeyError, TypeError):
        return _waiting_for_server(_STRANGER)
    return _waiting_for_crds(sorted(missing)) if missing else None


async def _not_served(client: KubeClient) -> Trouble:
    # Any web server says 404; only the real one has a list of groups.
    try:
        groups: Any = await client.request("GET", "/apis")
    except (NotFoundError, ClusterError, RequestError):
        groups = None
    if isinstance(groups, dict) and groups.get("kind") == "APIGroupList":
        return _waiting_for_crds([f"{GROUP}/{VERSION}"])
    return _waiting_for_server(_STRANGER)


async def _check_rights(client: KubeClient, *, reads: Sequence[str]) -> None:
    lists = [resource.path(namespace="") for resource in (*_OURS, NODES, NAMESPACES, PODS)]
    for path in (*lists, *reads):
        try:
            await client.request("GET", path, params={"limit": "1"} if path in lists else None)
        except (ClusterError, NotFoundError, RequestError) as error:
            # Not about rights: the watch that comes next deals with it.
            log.debug("rights_not_checked", path=path, err=str(error))


def _waiting_for_crds(missing: Sequence[str]) -> Trouble:
    return Trouble(
        event="waiting_for_crds", err=f"not served: {', '.join(missing)}", hint=INSTALL_CRDS
    )


def _waiting_for_server(err: str) -> Trouble:
    return Trouble(
        event="waiting_for_server", err=err, hint="is the server up, and is this its address?"
    )


def access_hint(error: AccessError) -> str:
    """Return what a person can do about refused credentials or rights."""
    if error.status == 403:  # noqa: PLR2004 - HTTP Forbidden
        return "the manifests in charts/kvoffload/files/rbac grant what is needed"
    return "the token or certificate is wrong, expired or unreadable: give valid credentials"
