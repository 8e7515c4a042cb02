"""Segments registered with a GPU, from their mapping to just before it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Final

import numpy as np

from kvoffload_client.carrier import DeviceError
from kvoffload_client.cuda.device import Device
from kvoffload_client.cuda.plan import Pieces, pieces_of

_log = logging.getLogger(__name__)

_NO_PIECES: Final = Pieces(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64))


class Pins:
    """Registered pieces of host memory. All methods may be called from any thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._held: dict[int, list[tuple[int, int]]] = {}
        self._pieces = _NO_PIECES

    @property
    def pieces(self) -> Pieces:
        """What is registered now."""
        return self._pieces

    def pin(self, address: int, nbytes: int) -> None:
        """Register a mapped segment, in pieces.

        What CUDA refuses stays as it is, with one line in the log: its copies are slower, and
        right all the same. A segment is never registered in part.
        """
        done: list[tuple[int, int]] = []
        try:
            for piece in pieces_of(address, nbytes):
                self._device.register(*piece)
                done.append(piece)
        except DeviceError as error:
            _log.warning(
                "a segment of %d bytes cannot be registered with the GPU, its copies will be"
                " slower: %s",
                nbytes,
                error,
            )
            self._unregister(done)
            return
        with self._lock:
            self._held[address] = done
            self._publish()

    def unpin(self, address: int) -> None:
        """Unregister a segment that no copy uses any more, if it is registered."""
        with self._lock:
            pieces = self._held.pop(address, [])
            self._publish()
        self._unregister(pieces)

    def _unregister(self, pieces: list[tuple[int, int]]) -> None:
        for address, _ in pieces:
            # A GPU that failed keeps nothing registered that could be undone.
            with contextlib.suppress(DeviceError):
                self._device.unregister(address)

    def _publish(self) -> None:
        ordered = sorted(piece for pieces in self._held.values() for piece in pieces)
        self._pieces = Pieces(
            np.array([start for start, _ in ordered], dtype=np.uint64),
            np.array([start + nbytes for start, nbytes in ordered], dtype=np.uint64),
        )
