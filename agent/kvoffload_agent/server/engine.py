"""What a session needs of the scheduler and of the policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvoffload_agent.partitions.partition import Pool
from kvoffload_agent.scheduler.types import (
    Blocks,
    LoadResult,
    MatchResult,
    RequestCaps,
    SchedulerConfig,
    StepInput,
    StepResult,
)
from kvoffload_agent.server.identity import Identity
from kvoffload_api.resolution import Effective


class Engine(Protocol):
    """The scheduler of one engine; no method waits. ``now`` is monotonic seconds."""

    def new_request(
        self,
        handle: int,
        *,
        num_tokens: int,
        num_prompt_tokens: int,
        hashes: Sequence[bytes],
        caps: RequestCaps,
        skip_reading_prefix_cache: bool,
    ) -> None:
        """Announce a request."""

    def append(self, handle: int, *, num_tokens: int, hashes: Sequence[bytes]) -> None:
        """Let a request grow."""

    def set_caps(self, handle: int, caps: RequestCaps) -> None:
        """Replace a request's caps, from its next decision on."""

    def match(
        self, handle: int, *, computed: int, max_new_tokens: int | None, now: float
    ) -> MatchResult:
        """Return how many tokens can be loaded."""

    def alloc(self, handle: int, *, external_tokens: int, blocks: Sequence[Blocks]) -> LoadResult:
        """Plan the load into allocated blocks."""

    def step(self, step: StepInput, *, now: float) -> StepResult:
        """Build one step."""

    def finish(self, handle: int, *, status: str, computed: int) -> None:
        """End a request."""

    def complete(self, *, done: Sequence[int], failed: Sequence[int], now: float) -> None:
        """Take one worker's acknowledgement of each of these jobs."""

    def reset(self) -> None:
        """Reset the prefix cache."""

    def close(self) -> None:
        """End the session: pins are released, half-written slots freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What policy says about a pod. ``name`` identifies its content, ``source`` who won.

    ``capacity``: bytes of host memory, None: no bound of its own; ``disk_capacity``: of disk.
    """

    name: str
    source: str
    bucket: str
    capacity: int | None
    disk_capacity: int
    effective: Effective


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """An entry tightened by one request. ``invalid``: fields of it that were malformed."""

    caps: RequestCaps
    timeout_seconds: float
    invalid: tuple[str, ...] = ()


class Policies(Protocol):
    """The configuration in force."""

    @property
    def version(self) -> int:
        """Moves whenever any answer of ``entry`` may have changed."""

    def entry(self, identity: Identity) -> Entry | None:
        """Return the pod's entry; None while it has none: it loads and stores nothing."""

    def resolve(self, entry: Entry | None, params: object) -> Resolved:
        """Tighten an entry by a request's raw ``kv_transfer_params``; never raises."""


MakeEngine = Callable[[SchedulerConfig, Pool], Engine]
