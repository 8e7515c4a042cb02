"""Processes that never outlive whoever started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class NotReadyError(Exception):
    """A process ended or did not become ready in time; the message holds its last lines."""


def die_with_parent() -> None:
    """In the child: be killed when the parent is, even if that was by SIGKILL."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A child in a process group of its own, its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._output = log.open("ab")
        self.popen = subprocess.Popen(
            command,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl call, no lock taken
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL the whole group, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(timeout=10)
        self._output.close()

    def stop(self, *, patience_seconds: float = 15.0) -> int:
        """SIGTERM, then SIGKILL; returns the exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGTERM)
        try:
            self.popen.wait(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._output.close()
        return self.popen.returncode

    def last_lines(self, count: int = 15) -> str:
        """Return the end of its output."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        return ""

    def wait_until(
        self, condition: Callable[[], bool], *, what: str, deadline_seconds: float
    ) -> None:
        """Wait for a condition.

        Raises:
            NotReadyError: the process ended first, or the deadline passed.
        """
        until = time.monotonic() + deadline_seconds
        while not condition():
            if not self.running:
                raise NotReadyError(
                    f"{self.name} ended with {self.popen.returncode} before {what}:\n"
                    f"{self.last_lines()}"
                )
            if time.monotonic() > until:
                raise NotReadyError(
                    f"{self.name}: {what} did not happen within {deadline_seconds:.0f} s:\n"
                    f"{self.last_lines()}"
                )
            time.sleep(0.02)


@contextlib.contextmanager
def all_stopped(processes: list[Process]) -> Iterator[list[Process]]:
    """Stop every process in the list when the block ends, last started first."""
    try:
        yield processes
    finally:
        for process in reversed(processes):
            process.stop()
