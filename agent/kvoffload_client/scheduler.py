"""The scheduler side of an engine's session: what to load, what to store, what to flush."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvoffload_client.jobs import JobKey
from kvoffload_client.layout import EngineLayout
from kvoffload_client.outcomes import MatchOutcome, StepInput, StepOutcome
from kvoffload_client.settings import ClientSettings


class SchedulerSession:
    """Blocking session for an engine's scheduling loop; call it from one thread.

    No method waits longer than the hook deadline, none raises because of the agent. Without an
    agent, matches are 0, nothing is stored, and loads in flight are reported as failed.
    """

    def __init__(self, *, settings: ClientSettings, layout: EngineLayout) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Begin to connect in the background and return at once."""
        raise NotImplementedError

    def wait_ready(self, *, timeout_seconds: float) -> bool:
        """Wait until the agent has accepted the engine; for start-up and tests only."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection and end the session's thread."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether the agent has accepted the engine and is connected."""
        raise NotImplementedError

    def new_request(
        self,
        *,
        request_id: str,
        num_tokens: int,
        num_prompt_tokens: int,
        hashes: Iterable[bytes],
        params: Any = None,
        skip_reading_prefix_cache: bool = False,
    ) -> int:
        """Announce a request with its block hashes so far; return its handle."""
        raise NotImplementedError

    def append(self, handle: int, *, num_tokens: int, hashes: Iterable[bytes]) -> None:
        """Tell that a request has grown to ``num_tokens``, with the hashes that came with it."""
        raise NotImplementedError

    def prefetch(self, handle: int, *, computed: int, max_new_tokens: int | None = None) -> None:
        """Send the lookup now; a ``match`` with the same arguments takes its answer."""
        raise NotImplementedError

    def match(
        self, handle: int, *, computed: int, max_new_tokens: int | None = None
    ) -> MatchOutcome:
        """Return how many tokens beyond ``computed`` can be loaded.

        After three answers "ask later" because the hook deadline passed, the answer is 0.
        """
        raise NotImplementedError

    def alloc(self, handle: int, *, external_tokens: int, blocks: Sequence[Sequence[int]]) -> None:
        """Tell the whole block table after allocation, per group.

        A negative id is a block that already has a hash, 0 the null block. The load comes with the
        outcome of this step or of a later one; see ``StepOutcome``.
        """
        raise NotImplementedError

    def step(self, step: StepInput) -> StepOutcome:
        """Build one step; stores are skipped if the answer misses the hook deadline."""
        raise NotImplementedError

    def finish(self, handle: int, *, status: str, computed: int) -> None:
        """Tell that a request ended: ``stopped``, ``length`` or ``aborted``.

        The handle must also be in ``StepInput.finished`` of a later step, which forgets it.
        """
        raise NotImplementedError

    def complete(self, keys: Iterable[JobKey]) -> None:
        """Tell that every rank has ended these jobs, well or not: their blocks are free of fences.

        Workers report to the agent themselves; this is for the session's own table.
        """
        raise NotImplementedError

    def reset(self) -> bool:
        """Reset the prefix cache on the agent's side; False if it was not acknowledged."""
        raise NotImplementedError
