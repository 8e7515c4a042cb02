"""Starts a real vLLM engine in its own environment and talks to it from a test."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.harness.processes import Process
from tests.vllm.install import ROOT, environment_python

# Two engines at once were up in 80 s on two cores, and in 200 s with everything else of the test
# suite running beside them; three times that is one that hangs.
START_DEADLINE_SECONDS = 600.0
# A 900-token prompt takes a second or two; the first one after a start up to 20 s.
ANSWER_DEADLINE_SECONDS = 120.0


class EngineError(Exception):
    """The engine answered with an error, or not at all."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What one request brought. ``cached``: prompt tokens found on the device or loaded."""

    tokens: tuple[int, ...]
    cached: int
    logprobs: tuple[float, ...]


class Engine:
    """An engine process. Starting one does not wait; ``wait_until_ready`` does.

    ``arguments``: of vLLM's ``LLM``, over the defaults in ``engine_process``.
    """

    def __init__(
        self,
        *,
        name: str,
        directory: Path,
        model: Path,
        arguments: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = directory / f"{name}.log"
        address = directory / f"{name}.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(1)
        self._listener.settimeout(0.2)  # short, so that an engine that died is noticed
        command = [str(environment_python()), "-m", "tests.vllm.engine_process"]
        command += ["--socket", str(address), "--model", str(model)]
        command += ["--engine-arguments", json.dumps(dict(arguments or {}))]
        self.process = Process(
            command,
            name=name,
            log=self.log,
            cwd=ROOT,
            environment={**engine_environment(), **(environment or {})},
        )
        self._connection: socket.socket | None = None
        self._stream: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait for the engine to say that it is up.

        Raises:
            EngineError: it ended, or did not come up in time.
        """
        until = time.monotonic() + START_DEADLINE_SECONDS
        while self._connection is None:
            try:
                self._connection, _ = self._listener.accept()
            except TimeoutError:
                if not self.process.running or time.monotonic() > until:
                    raise EngineError(
                        f"{self.process.name} did not come up:\n{self.process.last_lines(40)}"
                    ) from None
        self._connection.settimeout(ANSWER_DEADLINE_SECONDS)
        self._stream = self._connection.makefile("rw")
        if not json.loads(self._stream.readline()).get("ready"):
            raise EngineError(f"{self.process.name} is not ready")

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 24,
        params: Mapping[str, Any] | None = None,
    ) -> Output:
        """Generate greedily; ``params`` are the request's ``kv_transfer_params``."""
        (output,) = self.generate_all([prompt], max_tokens=max_tokens, params=params)
        return output

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int = 24,
        params: Mapping[str, Any] | None = None,
    ) -> list[Output]:
        """Generate from several prompts at once."""
        answer = self._ask(
            op="generate",
            prompts=[list(prompt) for prompt in prompts],
            max_tokens=max_tokens,
            params=dict(params or {}),
        )
        return [
            Output(
                tokens=tuple(output["tokens"]),
                cached=output["cached"],
                logprobs=tuple(output["logprobs"]),
            )
            for output in answer["outputs"]
        ]

    def reset_device_cache(self) -> None:
        """Forget the device's prefix cache; what is offloaded stays.

        Raises:
            EngineError: requests held blocks.
        """
        if not self._ask(op="reset")["ok"]:
            raise EngineError("the engine could not reset its prefix cache")

    def log_lines(self, text: str) -> list[str]:
        """Return the lines of the engine's log that contain ``text``."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    def stop(self) -> None:
        """End the engine's process group."""
        if self._stream is not None:
            self._stream.close()
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self.process.kill()

    def _ask(self, **request: Any) -> dict[str, Any]:
        self._stream.write(json.dumps(request) + "\n")
        self._stream.flush()
        line = self._stream.readline()
        if not line:
            raise EngineError(f"the engine ended:\n{self.process.last_lines(40)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{answer['error']}\n{self.process.last_lines(40)}")
        return answer


def engine_environment() -> dict[str, str]:
    """Return the variables of an engine: our packages importable, small, and quiet."""
    sources = [str(ROOT / "crds"), str(ROOT / "agent"), str(ROOT)]
    return {
        "PYTHONPATH": os.pathsep.join(sources),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Without network: nothing is fetched, and nothing reports usage.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "PYTHONWARNINGS": "ignore",
    }
