"""Starts ``kvoffload-agent run --policies`` as users do."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.processes import Process

PROGRAM = Path(sys.executable).with_name("kvoffload-agent")
# An emulated machine (``tests/guest``) needs longer, for both.
START_SECONDS = float(os.environ.get("KVOFFLOAD_TEST_START_SECONDS", "60"))
WAIT_SECONDS = float(os.environ.get("KVOFFLOAD_TEST_WAIT_SECONDS", "20"))

IDENTITIES = """
identities:
- {token: token-a, namespace: team-a, name: engine-a}
- {token: token-b, namespace: team-b, name: engine-b}
"""


def eventually(
    condition: Callable[[], Any], *, what: str, deadline_seconds: float = WAIT_SECONDS
) -> float:
    """Wait for another process; return how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + deadline_seconds:
            raise TimeoutError(f"{what} did not happen within {deadline_seconds:.1f} s")
        time.sleep(0.01)
    return time.monotonic() - began


class Agent:
    """``wrapper``: a command that becomes the agent, for instance in a cgroup."""

    def __init__(
        self, folder: Path, *, arguments: Sequence[str] = (), wrapper: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.socket = folder / "agent.sock"
        self.policies = folder / "policies"
        self.policies.mkdir(exist_ok=True)
        self.write("identities.yaml", IDENTITIES)
        self._arguments = arguments
        self._wrapper = wrapper
        self.process: Process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.stop()

    def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            NotReadyError: it ended, or did not serve in time; nothing of it runs on.
        """
        self._skip = len(self.log())
        self.process = Process(
            [
                *self._wrapper, str(PROGRAM), "run", *self.source(),
                "--socket", str(self.socket), "--http", "127.0.0.1:0", *self._arguments,
            ],
            name="agent",
            log=self.folder / "agent.log",
        )  # fmt: skip
        try:
            self.process.wait_until(
                lambda: self._served() is not None, what="serving", deadline_seconds=START_SECONDS
            )
        except BaseException:
            self.process.kill()
            raise
        self.http = self._served() or ""

    def source(self) -> list[str]:
        """Where its configuration comes from."""
        return ["--policies", str(self.policies)]

    def write(self, name: str, text: str) -> None:
        """Put a policy file in place, whole at once."""
        draft = self.policies / f".{name}.draft"
        draft.write_text(text)
        draft.rename(self.policies / name)

    def log(self) -> str:
        """Everything it logged."""
        path = self.folder / "agent.log"
        return path.read_text() if path.exists() else ""

    def state(self) -> dict[str, Any]:
        """Its ``/debug/state``."""
        with urllib.request.urlopen(f"http://{self.http}/debug/state", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def sessions(self) -> list[dict[str, Any]]:
        """Its sessions."""
        found: list[dict[str, Any]] = self.state()["sessions"]
        return found

    def partition(self) -> dict[str, Any]:
        """The partition of the engine that was here last."""
        found = self.state()["partitions"]
        return dict(found[-1])

    def _served(self) -> str | None:
        found = re.findall(r'"http": "([^"]+)"', self.log()[self._skip :])
        return found[-1] if found else None
