"""What one engine pod may make the agent remember, however many sessions it opens."""

from __future__ import annotations

from typing import Final

from kvoffload_agent.server.translate import WireError

# A pod with one engine for each of 16 GPUs, and as many again that are on their way out.
MAX_SESSIONS: Final = 32
# Their schedulers and eight ranks each.
MAX_CONNECTIONS: Final = 512
# Block hashes and block ids of live requests, about 80 bytes each: at most 640 MB. Requests of 60
# million tokens at 16 tokens a block have so many, a thousand times what a GPU holds.
MAX_ENTRIES: Final = 1 << 23
# What a request without any takes, 2.5 KB, in such entries.
REQUEST_ENTRIES: Final = 32


class Quota:
    """Counts for one identity; ``entries`` are block hashes and block ids."""

    def __init__(self) -> None:
        self.sessions = 0
        self.connections = 0
        self.entries = 0

    @property
    def unused(self) -> bool:
        """Whether nothing is counted, so that it need not be kept."""
        return not (self.sessions or self.connections or self.entries)

    def take(self, entries: int) -> None:
        """Count entries that are about to be remembered.

        Raises:
            WireError: they are too many; none is counted.
        """
        if entries > MAX_ENTRIES - self.entries:
            raise WireError(
                f"{entries} block hashes and ids beside {self.entries} that are known exceed"
                f" {MAX_ENTRIES}: finished requests must be told"
            )
        self.entries += entries

    def give_back(self, entries: int) -> None:
        """Count entries no more that were forgotten."""
        self.entries -= entries
