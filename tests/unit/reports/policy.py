"""From a policy and a request's raw parameters to the caps that the scheduler takes."""

from __future__ import annotations

from typing import Any

from tests.unit.api.builders import NODE, namespaced, pod, policies

from kvoffload_agent.config.caps import entry_of, resolve
from kvoffload_agent.server.engine import Resolved
from kvoffload_api import resolution

POLICY = "KVOffloadPolicy/team-a/chat"


def resolved(params: object, **spec: Any) -> Resolved:
    """Return what a request gets under a policy with this spec; without one if there is none."""
    items = (namespaced(**spec),) if spec else ()
    return resolve(entry_of(resolution.compile(policies(*items), pod(), NODE)), params)
