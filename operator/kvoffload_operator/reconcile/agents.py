"""One DaemonSet of agents for each pool of the chart's ConfigMap."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kvoffload_operator.daemonset import render
from kvoffload_operator.events import EventRecorder
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import NotFoundError
from kvoffload_operator.kube.resources import DAEMONSETS
from kvoffload_operator.pools import INTENT_ANNOTATION, AgentsConfig
from kvoffload_operator.reconcile.diff import contains, differences, project
from kvoffload_operator.reconcile.keys import Key
from kvoffload_operator.reconcile.result import Done, Result
from kvoffload_operator.world import World

log = structlog.get_logger(__name__)

Json = Mapping[str, Any]

# An Event's note is read in one line of `kubectl get events`.
_NAMED_FIELDS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Write:
    """Apply a DaemonSet.

    Attributes:
        body: Every field of ours.
        drifted: Fields that somebody else changed; empty if our own intent changed.
        new: Whether there is none of that name yet.
    """

    body: Json
    drifted: tuple[str, ...] = ()
    new: bool = False


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete the DaemonSet with this uid."""

    name: str
    uid: str


def decide(
    *,
    config: AgentsConfig,
    owner: Json,
    live: Mapping[str, Json],
    settled: Mapping[str, Json],
) -> list[Write | Remove]:
    """Return what to do about the DaemonSets of all pools.

    Args:
        config: What the chart says.
        owner: Metadata of the ConfigMap.
        live: Every DaemonSet with our label, by name.
        settled: What the server made of the last body that we applied, by name: it writes some
            values in another form, and lists may hold entries of others.
    """
    bodies = [render(config=config, pool=pool, owner=owner) for pool in config.pools]
    wanted = {body["metadata"]["name"]: body for body in bodies}
    actions: list[Write | Remove] = []
    for name, body in wanted.items():
        found = live.get(name)
        if found is None:
            actions.append(Write(body=body, new=True))
        elif not contains(found, body) and project(found, body) != settled.get(name):
            intent = (found["metadata"].get("annotations") or {}).get(INTENT_ANNOTATION)
            ours = body["metadata"]["annotations"][INTENT_ANNOTATION]
            drifted = tuple(differences(found, body)) if intent == ours else ()
            actions.append(Write(body=body, drifted=drifted))
    for name, found in live.items():
        owners = {item["uid"] for item in found["metadata"].get("ownerReferences") or ()}
        if name not in wanted and owner["uid"] in owners:
            actions.append(Remove(name=name, uid=found["metadata"]["uid"]))
    return actions


class AgentsReconciler:
    """Makes the DaemonSets be as the ConfigMap says.

    Args:
        world: What is known.
        client: Open client.
        events: Tells what was put right.
        namespace: Of the agents.
    """

    def __init__(
        self, *, world: World, client: KubeClient, events: EventRecorder, namespace: str
    ) -> None:
        self._world = world
        self._client = client
        self._events = events
        self._namespace = namespace
        self._settled: dict[str, Json] = {}

    async def reconcile(self, _key: Key) -> Result:
        """Write and delete DaemonSets where they differ.

        Raises:
            KubeError: A write failed.
        """
        pools = self._world.pools
        if pools is None:
            # Without the object that owns them the garbage collector takes them all.
            return Done()
        if pools.config is None:
            log.error("agents_config_rejected", err=pools.error, hint="what runs stays as it is")
            about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pools.owner}
            await self._events.warn(
                about, reason="AgentsConfigRejected", action="Read", note=pools.error
            )
            return Done()
        live = {key.name: item for key, item in self._world.daemonsets.items()}
        actions = decide(config=pools.config, owner=pools.owner, live=live, settled=self._settled)
        for action in actions:
            if isinstance(action, Write):
                await self._write(action)
            else:
                await self._remove(action)
        return Done(wrote=bool(actions))

    async def _write(self, action: Write) -> None:
        body, name = action.body, action.body["metadata"]["name"]
        answer = await self._client.apply(DAEMONSETS, body, name=name, namespace=self._namespace)
        self._settled[name] = project(answer, body)
        self._world.daemonsets.absorb(answer)
        if action.drifted:
            fields = ", ".join(action.drifted[:_NAMED_FIELDS])
            log.warning("drift_corrected", daemonset=name, fields=fields)
            await self._events.warn(
                answer, reason="DriftCorrected", action="Apply", note=f"put right: {fields}"
            )
        elif action.new:
            await self._events.tell(
                answer, reason="DaemonSetCreated", action="Apply", note="made for its pool"
            )

    async def _remove(self, action: Remove) -> None:
        try:
            await self._client.delete(
                DAEMONSETS, name=action.name, namespace=self._namespace, uid=action.uid
            )
        except NotFoundError:
            return
        self._settled.pop(action.name, None)
