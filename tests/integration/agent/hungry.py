"""An engine that takes what memory the agent gives, and the policy that allows it 2 GiB."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.harness.cgroups import Group
from tests.integration.agent.agent import Agent
from tests.integration.agent.wire import Peer

MIB = 1 << 20
# Longer than the agent needs for one segment and a question to the guard. An emulated machine
# (``tests/guest``) needs longer.
SETTLE_SECONDS = float(os.environ.get("KVOFFLOAD_TEST_SETTLE_SECONDS", "2"))
POLICY = """
apiVersion: kvoffload.io/v1alpha1
kind: ClusterKVOffloadPolicy
metadata: {name: default}
spec:
  nodeBudget: {hostMemory: 2Gi}
"""


@contextlib.contextmanager
def running_in(group: Group) -> Iterator[Agent]:
    """Run an agent in a cgroup, under the policy."""
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        agent = Agent(Path(directory), wrapper=group.enter())
        agent.write("default.yaml", POLICY)
        with agent:
            yield agent


class Hungry:
    """An engine with rows of 1 MiB that stores until the agent has no memory left to give."""

    def __init__(self, agent: Agent, *, token: str = "token-a") -> None:
        self._agent = agent
        self.scheduler = Peer(agent.socket, identity=token.encode(), block_bytes=MIB)
        self.scheduler.open(key=token, token=token)
        self.worker = Peer(agent.socket, identity=token.encode(), block_bytes=MIB)
        self.worker.join(key=token, token=token)
        self._handle = 0

    def fill(self, *, until_settled_seconds: float = SETTLE_SECONDS) -> None:
        """Map and store; end when memory has not grown for a while."""
        grown_at, mapped = time.monotonic(), 0
        while time.monotonic() < grown_at + until_settled_seconds:
            self.worker.map_some()
            self._handle += 1
            self.scheduler.store(
                handle=self._handle, blocks=16, seed=self._handle.to_bytes(4, "big")
            )
            now = self._agent.state()["memory"]["mapped"]
            if now != mapped:
                grown_at, mapped = time.monotonic(), now

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()
