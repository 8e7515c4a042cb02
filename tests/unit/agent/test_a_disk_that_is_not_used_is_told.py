"""What a node's status says of its disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvoffload_agent.config.status import DiskObservation, Observation, desired
from kvoffload_agent.memory.snapshot import MIB
from kvoffload_api.models.node import KVOffloadNodeStatus


def status(disk: DiskObservation | None) -> dict[str, Any]:
    source: Any = SimpleNamespace(applied_hash="", generation=1, rejected="")
    seen = Observation(
        boot_id="1", version="1", requested=0, mapped=0, populated=0, limit=None, headroom=0,
        limited_by="", refusal="", engines=(), disk=disk,
    )  # fmt: skip
    found: dict[str, Any] = desired(source, seen)
    return found


def observed(limited_by: str) -> DiskObservation:
    return DiskObservation(
        capacity=130 * MIB, used=65 * MIB, available=65 * MIB, limited_by=limited_by
    )


def degraded(found: dict[str, Any]) -> tuple[str, str, str]:
    [item] = [item for item in found["conditions"] if item["type"] == "Degraded"]
    return item["status"], item["reason"], item["message"]


def test_bytes_are_rounded_so_that_used_is_never_told_too_low() -> None:
    found = status(observed(""))
    assert found["disk"] == {
        "capacity": 128 * MIB,
        "used": 128 * MIB,
        "available": 64 * MIB,
        "verdict": "Admit",
        "limitedBy": "",
    }
    assert degraded(found) == ("False", "AsExpected", "")
    KVOffloadNodeStatus.model_validate({"disk": found["disk"]})


@pytest.mark.parametrize("why", ["no stores: No space left on device", "another agent uses /x"])
def test_a_disk_that_takes_nothing_degrades_the_node_and_says_why(why: str) -> None:
    found = status(observed(why))
    assert (found["disk"]["verdict"], found["disk"]["limitedBy"]) == ("Refuse", why)
    assert degraded(found) == ("True", "DiskPressure", why)


def test_an_agent_without_a_disk_says_nothing_of_one() -> None:
    assert status(None)["disk"] is None
