"""What every source of configuration offers the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kvoffload_agent.server.engine import Policies
from kvoffload_agent.server.identity import Identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes that policy gives this node's agent; None: policy says nothing."""

    host_memory: int | None = None
    local_disk: int | None = None
    reserved_memory: int = 0


class Source(Protocol):
    """A directory of YAML, or the node's own object."""

    @property
    def policies(self) -> Policies:
        """The configuration in force."""

    @property
    def identifier(self) -> Identifier:
        """How peers are identified."""

    @property
    def budget(self) -> Budget:
        """The node's budget in force."""

    @property
    def waiting_for(self) -> str:
        """What is missing before engines are served as policy says; ``""`` if nothing is."""

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow changes until cancelled; calls ``changed`` after each that took effect."""

    def describe(self) -> dict[str, Any]:
        """Return what is in force, for ``/debug/state``."""
