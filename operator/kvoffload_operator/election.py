"""Who leads: a Lease of coordination.k8s.io, with client-go's contract.

``Elector`` decides and does no I/O.
It never compares a remote timestamp with the local clock:
a lease is taken over when its record was not *seen to change* for a whole lease duration
of monotonic time,
and leadership is given up when no renewal succeeded for the renew deadline, which is shorter.
So two replicas never lead at once, whatever their wall clocks say.

==========  ===========================  =============================================
We          The record                   Intent
==========  ===========================  =============================================
follow      there is none                CREATE
follow      no holder (released)         TAKE
follow      ours (an earlier process)    TAKE once unchanged for a lease duration
follow      another's, changing          WAIT
follow      another's, unchanged         TAKE once unchanged for a lease duration
lead        ours                         RENEW
lead        another's, or none           LOST
lead        (cannot be read or written)  LOST at the renew deadline
==========  ===========================  =============================================
"""

import enum
from dataclasses import dataclass
from typing import Final

# client-go's defaults, which every operator's runbook assumes.
LEASE_DURATION_S: Final = 15.0
RENEW_DEADLINE_S: Final = 10.0
RETRY_PERIOD_S: Final = 2.0
JITTER_FACTOR: Final = 1.2


class Intent(enum.Enum):
    """What the elector wants its driver to do next."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a Lease says.

    Attributes:
        holder: Identity of the holder; empty if it was released.
        renewed: The raw ``renewTime``; only a change of it means anything.
        acquired: The raw ``acquireTime``.
        transitions: How often the holder changed.
    """

    holder: str
    renewed: str
    acquired: str
    transitions: int


class Elector:
    """One candidate.

    Args:
        identity: Unique for each process.
        lease_duration: Seconds without a visible change after which the lease is free.
        renew_deadline: Seconds without a successful renewal after which we stop leading.
    """

    def __init__(
        self,
        *,
        identity: str,
        lease_duration: float = LEASE_DURATION_S,
        renew_deadline: float = RENEW_DEADLINE_S,
    ) -> None:
        if not renew_deadline < lease_duration:
            raise ValueError("renew_deadline must be less than lease_duration")
        self.identity = identity
        self.lease_duration = lease_duration
        self.renew_deadline = renew_deadline
        self.leading = False
        self._record: Record | None = None
        self._seen_at = float("-inf")
        self._renewed_at = float("-inf")

    def observe(self, record: Record | None, *, now: float) -> Intent:
        """Note what the Lease says at ``now`` and return what to do about it."""
        if record != self._record:
            self._record = record
            self._seen_at = now
        if self.leading:
            if self.expired(now=now) or record is None or record.holder != self.identity:
                return Intent.LOST
            return Intent.RENEW
        if record is None:
            return Intent.CREATE
        if not record.holder:
            return Intent.TAKE
        return Intent.TAKE if now - self._seen_at >= self.lease_duration else Intent.WAIT

    def wrote(self, record: Record, *, sent_at: float) -> None:
        """Note that our record was accepted.

        Args:
            record: What we wrote.
            sent_at: When the request was *sent*: others may count from then on.
        """
        self._record = record
        self._seen_at = self._renewed_at = sent_at
        self.leading = True

    def expired(self, *, now: float) -> bool:
        """Whether we led and did not renew within the deadline."""
        return self.leading and now - self._renewed_at >= self.renew_deadline

    def remaining(self, *, now: float) -> float:
        """Return the seconds until the next moment at which time alone changes the intent.

        For a leader that is the renew deadline, for a follower the end of the lease if nobody
        renews it; 0 if it has passed.
        """
        if self.leading:
            return max(0.0, self._renewed_at + self.renew_deadline - now)
        return max(0.0, self._seen_at + self.lease_duration - now)
