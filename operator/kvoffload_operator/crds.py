"""Waits until the API server serves our kinds."""

import asyncio
from typing import Final

import structlog

from kvoffload_api.names import GROUP, VERSION
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import KubeError, NotFoundError
from kvoffload_operator.resources import CLUSTER_POLICIES, OFFLOAD_NODES, POLICIES

log = structlog.get_logger(__name__)

# Who installs CRDs and operator together waits for this; a start-up probe allows minutes.
_POLL_S: Final = 2.0


async def wait_for_crds(client: KubeClient) -> None:
    """Return when all three kinds are served, and say which are missing until then.

    kopf looks for its kinds only once: started too early it would never see them.
    """
    wanted = {resource.plural for resource in (POLICIES, CLUSTER_POLICIES, OFFLOAD_NODES)}
    told = ""
    while True:
        try:
            answer = await client.request("GET", f"/apis/{GROUP}/{VERSION}")
            missing = wanted - {item["name"] for item in answer["resources"]}
            if not missing:
                return
            trouble = f"not served: {', '.join(sorted(missing))}"
        except NotFoundError:
            trouble = f"not served: {GROUP}/{VERSION}"
        except KubeError as error:
            trouble = str(error)
        if trouble != told:
            log.warning("waiting_for_crds", err=trouble, hint="kubectl apply -f crds/generated/")
            told = trouble
        await asyncio.sleep(_POLL_S)
