"""Copies that take addresses of memory and places in files alike."""

from __future__ import annotations

import ctypes
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.copying.tensors import FILE_BYTES, FILE_SHIFT, SharedTensors
from kvoffload_client.copy import BlockCopy

Addresses = NDArray[np.uint64]

_OFFSET_MASK: Final = FILE_BYTES - 1


class TensorCopy:
    """A ``BlockCopy`` between the arena and an engine's tensors.

    What is mapped goes through ``copy``; what is not is read and written by position, at about half
    the speed (``datapath.md`` section 1.2), which no truncation by the engine can turn into SIGBUS.
    """

    def __init__(self, tensors: SharedTensors, copy: BlockCopy) -> None:
        self._tensors = tensors
        self._copy = copy

    def __call__(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """Copy ``lengths[i]`` bytes from ``src[i]`` to ``dst[i]`` for every i.

        Raises:
            OSError: the engine's file does not hold what it held when it was shared.
        """
        self._tensors.check_allocated()
        in_file = (src >= FILE_BYTES) | (dst >= FILE_BYTES)
        mapped = ~in_file
        if mapped.all():
            self._copy(src, dst, lengths)
            return
        if mapped.any():
            self._copy(*(np.ascontiguousarray(part[mapped]) for part in (src, dst, lengths)))
        columns = (part[in_file].tolist() for part in (src, dst, lengths))
        for source, target, length in zip(*columns, strict=True):
            self._by_position(source, target, length)

    def _by_position(self, source: int, target: int, length: int) -> None:
        reads = source >= FILE_BYTES
        place, address = (source, target) if reads else (target, source)
        file = self._tensors.files[(place >> FILE_SHIFT) - 1]
        memory = (ctypes.c_char * length).from_address(address)
        move = os.preadv if reads else os.pwritev
        done = move(file.fd, [memory], place & _OFFSET_MASK)
        if done != length:
            raise OSError(f"{done} of {length} bytes of the engine's KV memory could be moved")
