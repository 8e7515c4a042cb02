"""Types and reasons of conditions and Events, spelled nowhere else (``operator.md`` 1.7)."""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """Types of conditions. ``Degraded`` is bad when true, the others are good when true."""

    ACCEPTED = "Accepted"
    PROGRAMMED = "Programmed"
    READY = "Ready"
    DEGRADED = "Degraded"


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reasons of conditions, one word each."""

    # Accepted
    ACCEPTED = "Accepted"
    CLAMPED = "Clamped"
    INVALID = "Invalid"
    CONFLICTED = "Conflicted"
    # Programmed
    PROGRAMMED = "Programmed"
    PARTIALLY_PROGRAMMED = "PartiallyProgrammed"
    NO_MATCHING_PODS = "NoMatchingPods"
    RECONCILING = "Reconciling"
    OVERRIDDEN = "Overridden"
    ROLLOUT_PAUSED = "RolloutPaused"
    # Degraded
    MEMORY_PRESSURE = "MemoryPressure"
    MEMORY_STUCK = "MemoryStuck"
    DISK_PRESSURE = "DiskPressure"
    PREFLIGHT_REFUSED = "PreflightRefused"
    CONFIG_REJECTED = "ConfigRejected"
    AS_EXPECTED = "AsExpected"
    # Ready, on first sight
    PENDING = "Pending"


class EventReason(StrEnum):
    """Reasons of the Events that an agent tells about its Node."""

    MEMORY_PRESSURE = "MemoryPressure"
    MEMORY_PRESSURE_ENDED = "MemoryPressureEnded"
