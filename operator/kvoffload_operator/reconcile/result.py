"""What a reconciler tells the queue."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Done:
    """Nothing is left to do until something changes.

    Attributes:
        wrote: Whether this pass changed anything on the server.
    """

    wrote: bool = False


@dataclass(frozen=True, kw_only=True)
class After:
    """Look again after so many seconds, even if nothing changes.

    Attributes:
        seconds: How long to wait.
        wrote: Whether this pass changed anything on the server.
    """

    seconds: float
    wrote: bool = False


Result = Done | After
