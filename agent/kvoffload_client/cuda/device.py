"""What copies need of a GPU. ``driver`` does it with CUDA; tests do it with the host's memory."""

from __future__ import annotations

from typing import Protocol

from kvoffload_client.carrier import Addresses, Mark
from kvoffload_client.cuda.plan import Abilities


class DeviceUnavailableError(Exception):
    """There is no GPU to copy with; the message says what is missing."""


class Stream(Protocol):
    """A queue of copies, carried out in order; used by one thread.

    All methods but ``synchronize`` return at once, except that copies of memory that is not
    registered may wait. All may raise ``DeviceError``.
    """

    def copy(self, src: int, dst: int, nbytes: int) -> None:
        """Queue one copy."""

    def copy_batch(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """Queue many copies in one call, in no order among each other."""

    def copy_kernel(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """Queue many copies by a kernel, which needs what ``plan`` grants it."""

    def record(self) -> Mark:
        """Mark what is queued so far."""

    def synchronize(self) -> None:
        """Wait until everything queued is over."""


class Device(Protocol):
    """One GPU in this process."""

    abilities: Abilities

    def stream(self) -> Stream:
        """Make a stream that waits for no other.

        Raises:
            DeviceError: CUDA refuses.
        """

    def mark(self) -> Mark:
        """Mark what the engine has queued so far; to be called on the engine's thread.

        Raises:
            DeviceError: CUDA refuses.
        """

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory for copies by the GPU; takes about 0.1 s a GB.

        Raises:
            DeviceError: CUDA refuses; the memory is as before.
        """

    def unregister(self, address: int) -> None:
        """Undo a ``register`` of this address; no copy may use it any more.

        Raises:
            DeviceError: CUDA refuses.
        """
