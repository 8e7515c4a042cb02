"""What the project's long steps share: the cache folder, remembered durations, locks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


def cache_directory() -> Path:
    """Return the folder that outlives checkouts."""
    explicit = os.environ.get("KVOFFLOAD_CACHE")
    if explicit:
        return Path(explicit).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvoffload"


def durations() -> dict[str, float]:
    """Return what steps took when they last succeeded, in seconds by name."""
    try:
        known = json.loads((cache_directory() / "durations.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def last_time(name: str) -> str:
    """Return " (last time 12 s)", or nothing if the step never succeeded here."""
    seconds = durations().get(name)
    return f" (last time {seconds:.0f} s)" if isinstance(seconds, int | float) else ""


def remember(name: str, seconds: float) -> None:
    """Keep a duration; a cache that cannot be written is no reason to fail."""
    path = cache_directory() / "durations.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {**durations(), name: round(seconds, 1)}
        temporary.write_text(json.dumps(known, indent=1, sort_keys=True))
        temporary.replace(path)


@contextlib.contextmanager
def step(name: str, *, detail: str = "") -> Iterator[None]:
    """Print what begins and how long it took last time; remember how long it took if it ends."""
    print(f"{name}{detail}{last_time(name)} ...", flush=True)
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    remember(name, seconds)
    print(f"{name}: done in {seconds:.0f} s", flush=True)


@contextlib.contextmanager
def locked(path: Path, *, what: str, deadline_seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on a file, so that two processes do not do the same work at once.

    Raises:
        TimeoutError: another process held it for all of ``deadline_seconds``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + deadline_seconds
    told = False
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"another process holds {path} for more than {deadline_seconds:.0f} s"
                    ) from None
                if not told:
                    print(f"another process is at it: waiting for {what}", flush=True)
                    told = True
                time.sleep(0.5)
        yield
