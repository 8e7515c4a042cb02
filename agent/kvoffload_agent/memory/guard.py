"""May this process take so many bytes more? A pure decision from a snapshot.

The kernel answers over-limit allocations of shared memory with SIGKILL, never with an error
(``datapath.md`` section 6), so the question must be asked before, for every small step.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvoffload_agent.memory.snapshot import MIB, Level, Snapshot

# One page-table page of 4 KiB maps 2 MiB of 4 KiB pages; charged to whoever maps.
PAGE_TABLE_SHARE = 512
# Others in the cgroup allocate between the question and the answer's use (``datapath.md``
# section 6: one grower at a time, a margin of at least 64 MiB or 2 %).
MIN_MARGIN_BYTES = 64 * MIB
MARGIN_SHARE = 50
# ``limited_by`` where not memory but policy is what is short.
POLICY_BUDGET = "policy budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """All ``bytes`` may be taken."""

    bytes: int
    limited_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Only ``bytes`` (more than zero, less than asked) may be taken; ``limited_by`` says why."""

    bytes: int
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Nothing may be taken. ``headroom`` bytes were there, ``reason`` is for people."""

    reason: str
    headroom: int
    limited_by: str


Verdict = Admit | Shrink | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The tightest limit: ``bytes`` may be taken under it after its margin (negative: over it)."""

    bytes: int
    limited_by: str
    limit: int | None


def margin(limit: int) -> int:
    """Return the bytes below a limit that are never taken."""
    return max(MIN_MARGIN_BYTES, limit // MARGIN_SHARE)


def level_headroom(level: Level, *, reserved: int = 0) -> int:
    """Return the bytes that may be taken under one limit.

    Inactive page cache is given back by the kernel before it kills, so it does not count as used.
    Some of it may be dirty or in use: where the limit is already near, only half of it counts.
    """
    if level.problem or level.limit is None:
        return 0
    keep = max(margin(level.limit), reserved)
    thin = level.limit - level.usage < keep
    reclaimable = min(level.usage, level.inactive_file // 2 if thin else level.inactive_file)
    return level.limit - (level.usage - reclaimable) - keep


def headroom(snapshot: Snapshot, *, reserved: int = 0) -> Headroom:
    """Return the smallest headroom of all limits.

    ``reserved``: bytes of the node that the policy keeps for others (nodeBudget.reservedMemory).
    """
    tightest: Headroom | None = None
    for level in snapshot.bounds():
        keep = reserved if level.path.startswith("node ") else 0
        free = level_headroom(level, reserved=keep)
        if tightest is None or free < tightest.bytes:
            tightest = Headroom(
                bytes=free, limited_by=level.problem or level.name, limit=level.limit
            )
    if tightest is None:
        return Headroom(bytes=0, limited_by="no memory limit or figure is readable", limit=None)
    return tightest


def decide(snapshot: Snapshot, wanted: int, budget: int | None, *, reserved: int = 0) -> Verdict:
    """Decide over ``wanted`` bytes more of shared memory that this process maps once.

    ``budget``: bytes the policy still allows, None if it sets none. A Shrink answer already leaves
    room for the page tables of the mapping.
    """
    if wanted <= 0:
        return Refuse(reason=f"{wanted} bytes were asked for", headroom=0, limited_by="request")
    room = headroom(snapshot, reserved=reserved)
    free = room.bytes * PAGE_TABLE_SHARE // (PAGE_TABLE_SHARE + 1)
    limited_by = room.limited_by
    if budget is not None and budget < free:
        free, limited_by = budget, POLICY_BUDGET
    if free >= wanted:
        return Admit(bytes=wanted, limited_by=limited_by)
    if free <= 0:
        return Refuse(
            reason=(
                f"{wanted} bytes were asked for and {max(0, free)} are free under {limited_by}"
                f" after a safety margin"
            ),
            headroom=free,
            limited_by=limited_by,
        )
    return Shrink(bytes=free, limited_by=limited_by)
