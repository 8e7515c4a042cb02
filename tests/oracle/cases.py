"""Finding, selecting and judging cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.oracle.better import BETTER
from tests.oracle.replay import MismatchError, Replay

CASES = Path(__file__).parents[1] / "data" / "oracle"

Json = dict[str, Any]


def load(path: Path) -> Json:
    """Read one case."""
    case: Json = json.loads(path.read_text())
    return case


def in_slice(case: Json) -> bool:
    """Full attention, one worker, host memory alone, LRU; nothing is reset or preempted."""
    config = case["config"]
    return (
        all(group["kind"] == "full" and not group.get("eagle") for group in config["groups"])
        and config.get("num_workers", 1) == 1
        and not config.get("tiers")
        and config.get("eviction_policy", "lru") == "lru"
        and not config.get("store_threshold")
        and not any(
            op["op"] == "reset_cache" or op["op"].startswith("m_") or op.get("preempted")
            for op in case["ops"]
        )
    )


SELECTIONS: dict[str, Callable[[Json], bool]] = {"all": lambda _: True, "slice": in_slice}


def outcome(case: Json) -> str:
    """Replay a case; return what differs first, "" if nothing does.

    Where the recorded engine is wrong, the better outcome is asserted instead (``better``).
    """
    replay = None
    try:
        replay = Replay(case)
        replay.run()
    except MismatchError as error:
        is_better = BETTER.get(case["name"])
        if is_better is not None and replay is not None and is_better(replay, error):
            return ""
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever stops a replay has failed the case
        return f"{type(error).__name__}: {error}"
    return ""
