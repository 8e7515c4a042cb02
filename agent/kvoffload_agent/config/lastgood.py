"""The last good configuration on disk: an agent that restarts without an API server needs it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

FILE_NAME: Final = "last-good.json"
# Names of pods and policies are nobody else's business.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGood:
    """``spec`` as the API server stored it, of the node ``node``."""

    node: str
    generation: int
    spec: dict[str, Any]


class LastGoodFile:
    """Reads at start, writes on change. A disk that fails costs only the memory of a restart."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def read(self, *, node: str) -> LastGood | None:
        """Return what an earlier life of this node's agent kept; None if it is unusable."""
        try:
            found = json.loads(self.path.read_bytes())
            last = LastGood(
                node=str(found["node"]),
                generation=int(found["generation"]),
                spec=dict(found["spec"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the last good configuration is unusable", error=repr(error))
            return None
        if last.node != node:
            _log.warning("the last good configuration is another node's", node=last.node)
            return None
        return last

    def write(self, last: LastGood) -> None:
        """Replace the file; whoever reads sees the old or the new one, whole."""
        fresh = self.path.with_name(f".{FILE_NAME}.{os.getpid()}")
        content = {"node": last.node, "generation": last.generation, "spec": last.spec}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
            fresh.unlink(missing_ok=True)
            # Made, not opened: what lies there under this name is not ours to write through.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(fresh, flags, FILE_MODE), "w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except OSError as error:
            _log.warning("the last good configuration can't be kept", error=str(error))
