"""Must the arena give memory back, or may it take more again? A pure decision from a snapshot.

The guard is asked before bytes are added; others allocate afterwards. Near a limit the kernel
reclaims page cache and then kills (``datapath.md`` section 6), and shared memory without swap is
never reclaimed, so the arena must go below its limit before that.

The answer moves a ceiling: the bytes that the arena keeps at most. It falls at once, and rises
only after a calm while, so that a neighbour that comes and goes does not empty caches each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvoffload_agent.memory.guard import margin
from kvoffload_agent.memory.snapshot import Level, Snapshot

# Growth ends at the margin and figures move by themselves, so nothing is given back before a
# quarter of the margin is gone; three quarters remain for the time that engines need to unmap.
TRIGGER_SHARE: Final = 4
# Longer than the 10 s over which PSI averages: what was short is over, not between two bursts.
CALM_SECONDS: Final = 15.0
# Half of what is free each time: a neighbour that comes back finds the other half.
GROW_SHARE: Final = 2
# A cgroup may stall below every limit that is visible here: give a part back, and look again.
STALL_SHARE: Final = 16
# A stall lasts while engines still unmap; PSI triggers tell of one each second at most.
STALL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """``ceiling``: bytes that the arena keeps at most, None if pressure sets no bound.

    ``moved_at``: when it was moved; ``calm_since``: since when nothing is short, None if it is.
    """

    ceiling: int | None = None
    moved_at: float = float("-inf")
    calm_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Nothing changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """``bytes`` must be given back because of ``limited_by``, which has ``slack`` bytes left."""

    bytes: int
    ceiling: int
    limited_by: str
    slack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grow:
    """Growth is allowed up to ``ceiling`` bytes (None: pressure sets no bound any more)."""

    ceiling: int | None
    slack: int


Step = Hold | Shrink | Grow


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """``bytes`` until the limit ``limited_by``, of which ``keep`` are to stay free."""

    bytes: int
    keep: int
    margin: int
    limited_by: str

    @property
    def spare(self) -> int:
        """Bytes beyond what stays free; negative: so many must be given back."""
        return self.bytes - self.keep


def tightest(snapshot: Snapshot, *, reserved: int = 0) -> Slack | None:
    """Return the limit with the least to spare; None if no limit is readable.

    Unlike the guard, which doubts that page cache near a limit can be reclaimed before it lets
    the arena grow, this counts all inactive page cache as free: the kernel takes it before it
    kills, and chunks are not evicted for a file that somebody reads. What is unreadable stops
    growth and evicts nothing.
    """
    found = [
        _slack(level, reserved=reserved)
        for level in snapshot.bounds()
        if level.limit is not None and not level.problem
    ]
    return min(found, key=lambda slack: slack.spare, default=None)


def decide(
    snapshot: Snapshot,
    state: State,
    *,
    now: float,
    populated: int,
    budget: int,
    stalled: bool = False,
    reserved: int = 0,
) -> tuple[Step, State]:
    """Decide over the arena's ceiling.

    Args:
        snapshot: of this moment.
        state: from the last call.
        now: seconds of a monotonic clock.
        populated: bytes that the arena has now, those that engines still unmap included.
        budget: bytes that policy allows.
        stalled: whether this process's own cgroup stalled on memory (PSI) since the last call.
        reserved: bytes of the node that policy keeps for others (nodeBudget.reservedMemory).
    """
    slack = tightest(snapshot, reserved=reserved)
    if slack is None:
        return Hold(), State(ceiling=state.ceiling, moved_at=state.moved_at)
    wanted = _to_give_back(slack, populated, stalled=stalled and now >= _stall_ends(state))
    if wanted:
        return _shrink(slack, state, wanted=wanted, populated=populated, now=now)
    if state.ceiling is None:
        return Hold(), state
    unknown = any(level.problem for level in snapshot.levels)
    calm_since = None
    if slack.spare >= slack.margin and not stalled and not unknown:
        calm_since = now if state.calm_since is None else state.calm_since
    ceiling = max(state.ceiling, populated + slack.spare // GROW_SHARE)
    if calm_since is None or now - calm_since < CALM_SECONDS or ceiling == state.ceiling:
        held = State(ceiling=state.ceiling, moved_at=state.moved_at, calm_since=calm_since)
        return Hold(), held
    raised = ceiling if ceiling < budget else None
    return Grow(ceiling=raised, slack=slack.bytes), State(ceiling=raised, moved_at=now)


def _to_give_back(slack: Slack, populated: int, *, stalled: bool) -> int:
    """Return the bytes to give back, 0 for none."""
    wanted = 0
    if slack.spare < -(slack.margin // TRIGGER_SHARE):
        # Back to twice the margin: once, instead of a little each time a neighbour grows.
        wanted = slack.margin - slack.spare
    if stalled:
        wanted = max(wanted, slack.margin, populated // STALL_SHARE)
    return min(wanted, populated)


def _shrink(
    slack: Slack, state: State, *, wanted: int, populated: int, now: float
) -> tuple[Step, State]:
    # What engines still unmap is part of ``populated``, so the same need gives the same ceiling
    # until it is met, and nothing is given back twice.
    ceiling = populated - wanted
    if state.ceiling is not None and state.ceiling <= ceiling:
        return Hold(), State(ceiling=state.ceiling, moved_at=state.moved_at)
    step = Shrink(bytes=wanted, ceiling=ceiling, limited_by=slack.limited_by, slack=slack.bytes)
    return step, State(ceiling=ceiling, moved_at=now)


def _stall_ends(state: State) -> float:
    return state.moved_at + STALL_SECONDS


def _slack(level: Level, *, reserved: int) -> Slack:
    assert level.limit is not None, "only limited levels"
    keep = margin(level.limit)
    on_node = level.path.startswith("node ")
    return Slack(
        bytes=level.limit - (level.usage - min(level.usage, level.inactive_file)),
        keep=max(keep, reserved) if on_node else keep,
        margin=keep,
        limited_by=level.name,
    )
