"""What a lane copies with: the host's cores, or a GPU that goes on by itself meanwhile."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvoffload_client.copy import BlockCopy

Addresses = NDArray[np.uint64]

# Between slices a copy looks whether it is still wanted. 8 MiB take about a millisecond and cost
# nothing measurable against one call (``datapath.md`` section 1.3, "Control latency").
HOST_SLICE_BYTES: Final = 8 * 1024 * 1024


class DeviceError(Exception):
    """A GPU refused a call or failed; the message says which call and why.

    The copies of that moment are lost, and nothing else: who catches it lets the engine recompute.
    """


class Mark(Protocol):
    """A point in the engine's own work on its GPU; what was queued before it comes first."""

    def reached(self) -> bool:
        """Return whether the work before it is done. Never waits.

        Raises:
            DeviceError: the GPU failed.
        """

    def close(self) -> None:
        """Give it back; it may or may not be reached."""


class Carrier(Protocol):
    """Copies of one lane, used by the lane's thread alone. Addresses are not checked here."""

    slice_bytes: int
    """About how much to give to one ``move``."""

    def move(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """Copy ``lengths[i]`` bytes from ``src[i]`` to ``dst[i]`` for every i, now or soon.

        Raises:
            OSError: memory cannot be read or written.
            DeviceError: the GPU refused; what was begun is over.
        """

    def drain(self) -> None:
        """Return once nothing that was given to ``move`` touches memory any more.

        Raises:
            DeviceError: the GPU failed; it touches no memory any more.
        """


class HostCarrier:
    """A ``Carrier`` that copies in the call itself."""

    slice_bytes = HOST_SLICE_BYTES

    def __init__(self, copy: BlockCopy) -> None:
        self._copy = copy

    def move(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """See ``Carrier``."""
        self._copy(src, dst, lengths)

    def drain(self) -> None:
        """Return: nothing is left to wait for."""
