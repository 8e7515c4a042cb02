"""Standalone: policies from a directory, followed while the agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import structlog

from kvoffload_agent.config.caps import entry_of, resolve
from kvoffload_agent.config.documents import (
    Contents,
    DocumentError,
    Signature,
    policy_set,
    read,
    signatures,
)
from kvoffload_agent.config.identities import IdentityEntry, StandaloneIdentifier
from kvoffload_agent.config.source import Budget
from kvoffload_agent.server.engine import Entry, Resolved
from kvoffload_agent.server.identity import Identity
from kvoffload_api.names import NodeName, PodUID
from kvoffload_api.resolution import NodeView, PodView, PolicySet, compile, node_budget  # noqa: A004 - the design's name

# A change is in force within this time; listing a few files costs some tens of microseconds.
LOOK_SECONDS: Final = 0.2

_log = structlog.get_logger(__name__)


class DirectorySource:
    """Compiles local policies for local engines, exactly as the operator does for pods.

    A file that can't be read keeps its last good contents. Until each file was good once no engine
    loads or stores: the broken one could be the stricter one.
    """

    def __init__(
        self,
        *,
        folder: Path,
        node_name: str,
        node_labels: Mapping[str, str],
        uid_namespaces: Mapping[int, str],
        namespace: str | None,
    ) -> None:
        self.folder = folder
        self._node = NodeView(name=NodeName(node_name), labels=node_labels)
        self._good: dict[Path, Contents] = {}
        self._broken: dict[Path, str] = {}
        self._seen: dict[Path, Signature] = {}
        self._policies = PolicySet()
        self._identities: tuple[IdentityEntry, ...] = ()
        self._compiled: dict[Identity, Entry] = {}
        self._problem = ""
        self._version = 0
        self.identifier = StandaloneIdentifier(
            entries=self.identities, uid_namespaces=uid_namespaces, namespace=namespace
        )
        self.budget = Budget()
        self.look()

    # --- Policies --------------------------------------------------------------------------

    @property
    def policies(self) -> DirectorySource:
        """Return itself: it answers for local engines."""
        return self

    @property
    def version(self) -> int:
        """Counts changes that took effect."""
        return self._version

    def entry(self, identity: Identity) -> Entry | None:
        """Compile for a local engine; None while a file was never good."""
        if self.waiting_for:
            return None
        known = self._compiled.get(identity)
        if known is None:
            pod = PodView(
                namespace=identity.namespace,
                name=identity.pod,
                uid=PodUID(identity.uid),
                labels=identity.labels,
            )
            known = self._compiled[identity] = entry_of(compile(self._policies, pod, self._node))
        return known

    def resolve(self, entry: Entry | None, params: object) -> Resolved:
        """Tighten by a request."""
        return resolve(entry, params)

    def identities(self) -> Sequence[IdentityEntry]:
        """Return who local engines are."""
        return self._identities

    # --- Source ----------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str:
        """Name files that were never good; ``""`` if there are none."""
        never = sorted(path.name for path in self._broken if path not in self._good)
        if never:
            return f"a valid {', '.join(never)}"
        return f"the directory: {self._problem}" if self._problem and not self._version else ""

    async def run(self, changed: Callable[[], None]) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.look():
                changed()

    def look(self) -> bool:
        """Read what changed; returns whether anything did."""
        try:
            now = signatures(self.folder)
        except OSError as error:
            self._note_problem(f"{self.folder} can't be listed: {error.strerror}")
            return False
        self._problem = ""
        if now == self._seen and self._version:
            return False
        for path in [path for path in self._seen if path not in now]:
            self._good.pop(path, None)
            self._broken.pop(path, None)
            _log.info("policy file removed", file=path.name)
        for path, signature in now.items():
            if self._seen.get(path) != signature:
                self._read(path)
        self._seen = now
        self._take()
        return True

    def describe(self) -> dict[str, Any]:
        """Return files, policies and what is wrong."""
        return {
            "source": "directory",
            "version": self._version,
            "files": sorted(path.name for path in self._good),
            "broken": {path.name: text for path, text in sorted(self._broken.items())},
            "policies": sorted(
                [policy.key for policy in self._policies.namespaced]
                + [policy.key for policy in self._policies.cluster]
            ),
            "waiting_for": self.waiting_for,
        }

    def _read(self, path: Path) -> None:
        try:
            self._good[path] = read(path)
        except DocumentError as error:
            self._broken[path] = str(error)
            _log.warning(
                "policy file is broken",
                error=str(error),
                in_force="its last good contents" if path in self._good else "nothing",
            )
        else:
            self._broken.pop(path, None)
            _log.info("policy file read", file=path.name)

    def _take(self) -> None:
        contents = [self._good[path] for path in sorted(self._good)]
        self._policies = policy_set(contents)
        self._identities = tuple(entry for each in contents for entry in each.identities)
        budget = node_budget(self._policies, self._node)
        self.budget = Budget(
            host_memory=budget.host_memory,
            local_disk=budget.local_disk,
            reserved_memory=budget.reserved_memory or 0,
        )
        self._compiled.clear()
        self._version += 1

    def _note_problem(self, text: str) -> None:
        if text != self._problem:
            _log.warning("policies are not readable", error=text)
        self._problem = text


def open_directory(source: DirectorySource) -> AbstractAsyncContextManager[DirectorySource]:
    """Return a source as the agent opens it; files need no closing."""
    return nullcontext(source)
