"""What a tier below host memory has to be. It may do I/O; this package only asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from kvoffload_agent.tiers.slots import Slots
from kvoffload_api.models.types import Locality, Medium

Key = tuple[int, bytes]


class Verdict(IntEnum):
    """What a tier knows of a key. ``RETRY``: not known yet, ask again."""

    MISS = 0
    HIT = 1
    PENDING = 2
    RETRY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A transfer ended. ``arrived``: of a load, the keys that did; None = all if ``success``.

    ``size``: bytes that a store moved, less than its slots hold if some chunks were there before;
    None = all. ``seconds``: how long it took; None = from its submission to the report.
    """

    job: int
    success: bool
    arrived: frozenset[Key] | None = None
    size: int | None = None
    seconds: float | None = None


# A tier says what it is as requests do, in lower case.
MEDIA: Final = tuple(medium.lower() for medium in Medium)
LOCALITIES: Final = tuple(locality.lower() for locality in Locality)


class UndeclaredTierError(ValueError):
    """A tier does not say what it is, so that no filter could hold it; whoever wrote it must."""


class SecondaryTier(Protocol):
    """A tier that host memory is filled from and written down to.

    ``request`` names a request of this pool; it is unique for the life of the pool. No call may
    wait; whatever takes time is submitted and reported by ``poll``.
    """

    medium: str | None
    """``storage`` or ``cpu``; a pool refuses a tier that does not say (None)."""
    locality: str | None
    """``local`` or ``remote``; a pool refuses a tier that does not say (None)."""
    request_level: bool
    """Whether it wants all chunks of a request, also those that were there before."""

    def lookup(self, request: int, key: Key) -> Verdict:
        """Say whether a key is here; never ``PENDING``."""

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to write chunks down; their slots stay until the job is reported."""

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to fill slots."""

    def poll(self) -> Sequence[Finished]:
        """Return the jobs that ended since the last call."""

    def drain(self) -> None:
        """Host memory is about to forget everything: end what can be ended without waiting.

        The next ``poll`` reports it. What goes on keeps its slots until it is reported.
        """

    def finish(self, request: int) -> None:
        """No more of a request will be stored or looked up."""


def check_declared(tiers: Sequence[SecondaryTier]) -> None:
    """See that each tier says its medium and its locality (report B19).

    In vLLM a tier that says neither matches every filter of ``kv_load_tiers``, so a request or a
    policy that allows local storage only would also read from it.

    Raises:
        UndeclaredTierError: a tier's medium or locality is none that a filter can name.
    """
    for number, tier in enumerate(tiers):
        for name, value, known in (
            ("medium", tier.medium, MEDIA),
            ("locality", tier.locality, LOCALITIES),
        ):
            if value not in known:
                raise UndeclaredTierError(
                    f"secondary tier {number} ({type(tier).__name__}): {name} is {value!r}, but it"
                    f" must be {' or '.join(known)} for a policy's tiers to mean anything"
                )
