"""An engine's KV memory as the agent opens it, trusting neither its size nor its pages.

A file that can shrink must not be mapped: touching what was cut off kills the agent (SIGBUS). A
file with holes must not be written: the pages would be charged to the agent, not to the engine.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvoffload_api.wire.copying import Share, SharedLayer
from kvoffload_client.layout import KVLayer, KVMemory

# Addresses from here on mean a file: user memory of Linux ends below 2**47 (x86-64) or 2**48
# (aarch64), and no file of KV memory has 2**48 bytes.
FILE_SHIFT: Final = 48
FILE_BYTES: Final = 1 << FILE_SHIFT
# Bounds of numbers from the wire: sums and products of two of them stay within 64 bits.
_MAX_BLOCKS: Final = 1 << 31
_MAX_BLOCK_BYTES: Final = 1 << 32
_STAT_BLOCK: Final = 512


class ShareError(Exception):
    """KV memory that cannot be used; the message says what the engine's side must change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """``mapping`` is None for a file that is read and written by position."""

    fd: int
    bytes: int
    mapping: mmap.mmap | None


class SharedTensors:
    """KV memory of one rank; owns its descriptors and mappings.

    Raises:
        ShareError: a file is unfit, or a layer does not lie within its file.
    """

    def __init__(self, share: Share, fds: Sequence[int], *, block_bytes: Sequence[int]) -> None:
        self.files: list[File] = []
        try:
            _check_groups(share, block_bytes)
            for number, fd in enumerate(fds):
                self.files.append(_open(fd, number))
            self.memory: KVMemory = [[self._layer(layer) for layer in g] for g in share.groups]
        except BaseException:
            taken = len(self.files)
            self.close()
            for fd in fds[taken:]:
                os.close(fd)
            raise

    def check_allocated(self) -> None:
        """Look, before each copy, that the engine has not given pages of its memory back.

        Raises:
            OSError: it has.
        """
        for file in self.files:
            if os.fstat(file.fd).st_blocks * _STAT_BLOCK < file.bytes:
                raise OSError("pages of the engine's KV memory are not allocated any more")

    def close(self) -> None:
        """Give everything back; no copy may be running."""
        for file in self.files:
            if file.mapping is not None:
                file.mapping.close()
            os.close(file.fd)
        self.files.clear()

    def _layer(self, layer: SharedLayer) -> KVLayer:
        if not 0 <= layer.file < len(self.files):
            raise ShareError(f"a layer is in file {layer.file} of {len(self.files)}")
        if not 0 < layer.num_blocks <= _MAX_BLOCKS:
            raise ShareError(f"a layer has {layer.num_blocks} blocks")
        if not 0 < layer.block_bytes <= layer.block_stride <= _MAX_BLOCK_BYTES:
            raise ShareError(
                f"blocks of {layer.block_bytes} bytes do not fit a stride of {layer.block_stride}"
            )
        file = self.files[layer.file]
        end = layer.offset + (layer.num_blocks - 1) * layer.block_stride + layer.block_bytes
        if layer.offset < 0 or end > file.bytes:
            raise ShareError(f"a layer ends at byte {end} of a file of {file.bytes}")
        return KVLayer(
            memory=_base(file, layer.file) + layer.offset,
            num_blocks=layer.num_blocks,
            block_stride=layer.block_stride,
            block_bytes=layer.block_bytes,
        )


def _check_groups(share: Share, block_bytes: Sequence[int]) -> None:
    if len(share.groups) != len(block_bytes):
        raise ShareError(f"{len(share.groups)} groups are shared of {len(block_bytes)} registered")
    for number, (layers, size) in enumerate(zip(share.groups, block_bytes, strict=True)):
        found = sum(layer.block_bytes for layer in layers)
        if found != size:
            raise ShareError(f"a block of group {number} has {found} bytes, registered were {size}")


def _open(fd: int, number: int) -> File:
    try:
        found = os.fstat(fd)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError as error:
        raise ShareError(f"file {number} cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShareError(f"file {number} is no regular or memory file")
    if flags & os.O_ACCMODE != os.O_RDWR:
        raise ShareError(f"file {number} is not open for reading and writing")
    if not 0 < found.st_size < FILE_BYTES:
        raise ShareError(f"file {number} has {found.st_size} bytes")
    if found.st_blocks * _STAT_BLOCK < found.st_size:
        raise ShareError(
            f"file {number} is not allocated as a whole: write or populate it before sharing it,"
            " or its pages would be charged to the agent"
        )
    try:
        mapping = mmap.mmap(fd, found.st_size) if _cannot_shrink(fd) else None
    except (OSError, ValueError) as error:
        raise ShareError(f"file {number} cannot be mapped: {error}") from error
    return File(fd=fd, bytes=found.st_size, mapping=mapping)


def _cannot_shrink(fd: int) -> bool:
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:  # not a file in memory
        return False


def _base(file: File, number: int) -> int:
    if file.mapping is None:
        return (number + 1) << FILE_SHIFT
    return int(np.frombuffer(file.mapping, dtype=np.uint8).ctypes.data)
