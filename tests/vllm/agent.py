"""A standalone agent as a real process, and what a test does to it from outside."""

from __future__ import annotations

import http.client
import json
import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml
from tests.harness.processes import Process

START_DEADLINE_SECONDS = 30.0
# Room for all prompts of the tests: a block of 128 tokens has 0.5 MB.
HOST_MEMORY = "192Mi"
SIGN_BIT = np.uint32(0x8000_0000)


class Agent:
    """An agent whose policies are the YAML files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "agent.sock"
        self.policies = directory / "policies"
        self._directory = directory
        self._http = directory / "agent.http"
        self.policies.mkdir(exist_ok=True)
        self._write(
            "default",
            {
                "apiVersion": "kvoffload.io/v1alpha1",
                "kind": "ClusterKVOffloadPolicy",
                "metadata": {"name": "default"},
                "spec": {"nodeBudget": {"hostMemory": HOST_MEMORY}},
            },
        )
        self._process: Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop()

    @property
    def process(self) -> Process:
        """The agent that was started last."""
        assert self._process is not None
        return self._process

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start it and wait for its socket."""
        if self._process is not None:
            self._process.stop()  # closes the log of one that was killed
        self.socket.unlink(missing_ok=True)
        command = [str(Path(sys.executable).with_name("kvoffload-agent")), "run"]
        command += ["--policies", str(self.policies), "--socket", str(self.socket)]
        command += ["--http", f"unix:{self._http}"]
        self._process = Process(command, name="agent", log=self._directory / "agent.log")
        self._process.wait_until(
            self.socket.exists, what="its socket", deadline_seconds=START_DEADLINE_SECONDS
        )

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()

    def state(self) -> dict[str, Any]:
        """Return what ``/debug/state`` shows."""
        connection = http.client.HTTPConnection("agent", timeout=10)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)
        connection.sock.connect(str(self._http))
        try:
            connection.request("GET", "/debug/state")
            state: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return state

    def figures(self) -> dict[str, Any]:
        """Return the counters of the engines' namespace since the agent started."""
        figures: dict[str, Any] = self.state()["namespaces"]["default"]
        return figures

    def freeze(self) -> None:
        """Stop it without ending it: its connections stay open and nothing answers."""
        os.killpg(self.process.popen.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self.process.popen.pid, signal.SIGCONT)

    def cap_loads(self, max_tokens: int | None) -> None:
        """Write (or, for None, remove) a namespaced policy with this cap."""
        if max_tokens is None:
            (self.policies / "cap.yaml").unlink()
            return
        self._write(
            "cap",
            {
                "apiVersion": "kvoffload.io/v1alpha1",
                "kind": "KVOffloadPolicy",
                "metadata": {"name": "cap", "namespace": "default"},
                "spec": {"load": {"maxTokens": max_tokens}},
            },
        )

    def flip_signs(self) -> int:
        """Negate every float32 in the arena, from outside; twice is as before. Returns bytes."""
        return flip_signs(self.process.popen.pid)

    def _write(self, name: str, document: dict[str, object]) -> None:
        """Write a policy file in one step, as an editor that renames does."""
        partial = self.policies / f".{name}.partial"
        partial.write_text(yaml.safe_dump(document))
        partial.rename(self.policies / f"{name}.yaml")


def flip_signs(agent_pid: int) -> int:
    """Negate every float32 in the memory of an agent's segments. Returns bytes."""
    flipped = 0
    for descriptor in Path(f"/proc/{agent_pid}/fd").iterdir():
        if not str(descriptor.readlink()).startswith("/memfd:"):
            continue
        with descriptor.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            values = np.frombuffer(memory, dtype=np.uint32)
            values ^= SIGN_BIT
            flipped += values.nbytes
            del values  # the mapping cannot be closed while an array looks at it
    return flipped
