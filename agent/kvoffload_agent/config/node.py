"""In a cluster: this node's own KVOffloadNode, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from kvoffload_agent import version as agent_version
from kvoffload_agent.config.caps import entry_of, resolve
from kvoffload_agent.config.lastgood import LastGood, LastGoodFile
from kvoffload_agent.config.review import TokenReviewIdentifier
from kvoffload_agent.config.source import Budget
from kvoffload_agent.kube.access import Access
from kvoffload_agent.kube.client import Json, KubeClient, KubeError
from kvoffload_agent.kube.outage import Outage
from kvoffload_agent.server.engine import Entry, Resolved
from kvoffload_agent.server.identity import Identity
from kvoffload_api.models.node import KVOffloadNodeSpec
from kvoffload_api.names import API_VERSION
from kvoffload_api.quantity import parse_quantity
from kvoffload_api.resolution import Effective

PATH: Final = f"/apis/{API_VERSION}/kvoffloadnodes"
# The server ends each watch after some minutes; a spread keeps those of a fleet apart.
WATCH_SECONDS: Final = (300, 540)
# client-go's order: a second at first, half a minute when the server stays away.
BACKOFF_SECONDS: Final = (0.5, 30.0)
# A server that accepts a watch and ends it at once is asked no faster than one that refuses it.
SHORTEST_WATCH_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class NodeSource:
    """Follows ``KVOffloadNode/NODE`` with list and watch by name, so that one agent is woken.

    What was last good stays in force while the API server is away, when the object is gone, when a
    new spec is not understood, and over a restart of the agent. A pod that it does not name loads
    and stores nothing.
    """

    def __init__(self, *, client: KubeClient, node_name: str, state_dir: Path) -> None:
        self.client = client
        self.node_name = node_name
        self.identifier = TokenReviewIdentifier(client=client, node_name=node_name)
        self.budget = Budget()
        self.generation = 0
        self.applied_hash = ""
        self.object_uid = ""
        """Of the object as last seen; ``""`` while there is none."""
        self.stored_status: Json = None
        """The object's status as last seen."""
        self.rejected = ""
        """Why the newest spec is not in force; ``""`` if it is."""
        self._file = LastGoodFile(state_dir)
        self._entries: dict[str, Entry] = {}
        self._pods: dict[str, tuple[str, str]] = {}
        self._version = 0
        self._connected = False
        self._delay = BACKOFF_SECONDS[0]
        self._outage = Outage(server=client.server)
        self._resource_version = ""
        last = self._file.read(node=node_name)
        if last is not None:
            self._apply(last.spec, generation=last.generation)
            _log.info("last good configuration taken", hash=self.applied_hash)

    # --- Policies --------------------------------------------------------------------------

    @property
    def policies(self) -> NodeSource:
        """Return itself: it answers for pods."""
        return self

    @property
    def version(self) -> int:
        """Counts specs that took effect."""
        return self._version

    def entry(self, identity: Identity) -> Entry | None:
        """Return a pod's entry; a uid that is listed for another namespace has none."""
        namespace, name = self._pods.get(identity.uid, ("", ""))
        return self._entries.get(name) if namespace == identity.namespace else None

    def resolve(self, entry: Entry | None, params: object) -> Resolved:
        """Tighten by a request."""
        return resolve(entry, params)

    # --- Source ----------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str:
        """Say why no spec was ever in force: no access, no object, or one not understood."""
        if self._version:
            return ""
        name = f"KVOffloadNode/{self.node_name}"
        if self._outage.reason:
            return f"{name}: {self._outage.reason}"
        if self.rejected:
            return f"{name}: its spec is not understood: {self.rejected}"
        if self._connected and not self.object_uid:
            return f"{name} does not exist: is the operator running, and does it select this node?"
        return name

    async def run(self, changed: Callable[[], None]) -> None:
        """List, then watch, until cancelled; every failure backs off with jitter."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                if not self._resource_version:
                    await self._list(changed)
                await self._watch(changed)
                if clock() - began < SHORTEST_WATCH_SECONDS:
                    await self._pause()
            except KubeError as error:
                # After 410 or any refusal nothing is known about what was missed: list again.
                if error.status:
                    self._resource_version = ""
                self._outage.failed(error)
                self._connected = False
                await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._delay * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        self._delay = min(2 * self._delay, BACKOFF_SECONDS[1])

    def describe(self) -> dict[str, Any]:
        """Return what is in force."""
        return {
            "source": "cluster",
            "node": self.node_name,
            "version": self._version,
            "applied_hash": self.applied_hash,
            "generation": self.generation,
            "connected": self._connected,
            "problem": self._outage.reason,
            "entries": len(self._entries),
            "pods": len(self._pods),
            "rejected": self.rejected,
            "waiting_for": self.waiting_for,
        }

    async def _list(self, changed: Callable[[], None]) -> None:
        found = await self.client.request("GET", PATH, params=self._selector)
        self._resource_version = str(found["metadata"]["resourceVersion"])
        items = found.get("items") or []
        if items:
            self._see(items[0], changed)
        else:
            self._gone()

    async def _watch(self, changed: Callable[[], None]) -> None:
        async for kind, item in self.client.watch(
            PATH,
            params={**self._selector, "resourceVersion": self._resource_version},
            timeout_seconds=random.randint(*WATCH_SECONDS),  # noqa: S311 - spread
            opened=self._reached,
        ):
            if kind == "DELETED":
                self._gone()
            elif kind in {"ADDED", "MODIFIED"}:
                self._see(item, changed)
            self._resource_version = str(item["metadata"]["resourceVersion"])

    def _reached(self) -> None:
        """Take an open watch; a list alone is not enough, for watching may be forbidden."""
        self._connected = True
        self._delay = BACKOFF_SECONDS[0]
        self._outage.over()

    @property
    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"metadata.name={self.node_name}"}

    def _see(self, item: Json, changed: Callable[[], None]) -> None:
        """Take an object as it is now; a change of status alone changes nothing here."""
        meta, spec = item.get("metadata") or {}, item.get("spec")
        self.object_uid = str(meta.get("uid", ""))
        self.stored_status = item.get("status")
        if not isinstance(spec, dict):
            return
        generation = int(meta.get("generation") or 0)
        if spec.get("hash") == self.applied_hash and not self.rejected:
            self.generation = generation
            return
        if self._apply(spec, generation=generation):
            self._file.write(LastGood(node=self.node_name, generation=generation, spec=spec))
        changed()

    def _gone(self) -> None:
        if self.object_uid:
            _log.warning("KVOffloadNode is gone, its last spec stays in force")
        self.object_uid = ""
        self.stored_status = None

    def _apply(self, document: dict[str, Any], *, generation: int) -> bool:
        """Put a spec into force as a whole; False and unchanged if it is not understood."""
        try:
            spec = KVOffloadNodeSpec.read(document)
            entries = {
                entry.hash: entry_of(Effective.from_entry(entry), name=entry.hash)
                for entry in spec.entries or ()
            }
        except (ValidationError, ValueError) as error:
            self.generation = generation
            self.rejected = str(error)[:300]
            _log.error("the spec is not understood, the last good one stays", error=self.rejected)
            return False
        self._entries = entries
        self._pods = {pod.uid: (pod.namespace, pod.entry) for pod in spec.pods or ()}
        budget = spec.budget
        self.budget = Budget(
            host_memory=(
                parse_quantity(budget.host_memory) if budget and budget.host_memory else None
            ),
            local_disk=(
                parse_quantity(budget.local_disk) if budget and budget.local_disk else None
            ),
            reserved_memory=(
                parse_quantity(budget.reserved_memory) if budget and budget.reserved_memory else 0
            ),
        )
        self.rejected = ""
        self.applied_hash = spec.hash
        self.generation = generation
        self._version += 1
        _log.info(
            "configuration in force",
            hash=spec.hash,
            generation=generation,
            entries=len(entries),
            pods=len(self._pods),
        )
        return True


@asynccontextmanager
async def open_node(
    *, access: Access, node_name: str, state_dir: Path
) -> AsyncIterator[NodeSource]:
    """Open the source of this node; its connections close with the block."""
    user_agent = f"kvoffload-agent/{agent_version()} ({node_name})"
    async with KubeClient(access, user_agent=user_agent) as client:
        yield NodeSource(client=client, node_name=node_name, state_dir=state_dir)
