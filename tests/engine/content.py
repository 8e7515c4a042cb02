"""Device memory whose blocks hold bytes derived from their content."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvoffload_client import KVLayer, SharedKVLayer

Words = NDArray[np.uint64]

# A tile is drawn once per block and repeated with the number of its row added: cheap to make, yet
# no two words of a block, and no two blocks, have equal bytes in the same place.
TILE_WORDS = 512
TILE_BYTES = TILE_WORDS * 8

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STEPS = np.arange(1, TILE_WORDS + 1, dtype=np.uint64) * GOLDEN


def splitmix(seed: int, steps: Words = _STEPS) -> Words:
    """Return pseudo-random words of a seed (SplitMix64, Steele et al. 2014)."""
    z = np.uint64(seed) + steps
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def seed_of(block_hash: bytes) -> int:
    """Return the seed of a full block's bytes."""
    return int.from_bytes(block_hash[:8], "little")


def partial_seed(request_id: str, index: int) -> int:
    """Return the seed of a block that is not full yet: nobody else may have these bytes."""
    return seed_of(hashlib.sha256(f"{request_id}/{index}".encode()).digest())


def make_kv_file(size: int, *, sealed: bool) -> int:
    """Return the descriptor of a file of zeros: memory that cannot shrink, or one as torch's.

    torch's tensors in shared memory are files of /dev/shm without a name (``shm_open``).
    """
    if sealed:
        fd = os.memfd_create("engine-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        fd, name = tempfile.mkstemp(dir="/dev/shm")
        Path(name).unlink()
    os.ftruncate(fd, size)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


class DeviceMemory:
    """KV memory of one rank: layers of ``num_blocks`` blocks of ``layer_bytes`` each.

    ``file``: a descriptor of as many bytes to have them in, layer by layer; None: private memory.
    """

    def __init__(
        self, *, num_blocks: int, num_layers: int, layer_bytes: int, file: int | None = None
    ) -> None:
        if layer_bytes % TILE_BYTES:
            raise ValueError(f"bytes of a layer's block must be a multiple of {TILE_BYTES}")
        rows = layer_bytes // TILE_BYTES
        self.num_blocks = num_blocks
        self.block_bytes = num_layers * layer_bytes
        shape = (num_layers, num_blocks, rows, TILE_WORDS)
        self._file = file
        if file is None:
            self._layers = [np.zeros(shape[1:], dtype=np.uint64) for _ in range(num_layers)]
        else:
            memory = mmap.mmap(file, num_layers * num_blocks * layer_bytes)
            self._layers = list(np.frombuffer(memory, dtype=np.uint64).reshape(shape))
            for layer in self._layers:
                layer.fill(0)  # allocates every page, charged to the engine
        numbers = np.arange(num_layers * rows, dtype=np.uint64)
        self._numbers = numbers.reshape(num_layers, rows, 1)
        self._expected = np.empty((rows, TILE_WORDS), dtype=np.uint64)

    def layers(self) -> list[KVLayer]:
        return [
            KVLayer(
                memory=layer,
                num_blocks=self.num_blocks,
                block_stride=layer.strides[0],
                block_bytes=layer.strides[0],
            )
            for layer in self._layers
        ]

    def shared_layers(self) -> list[SharedKVLayer]:
        assert self._file is not None
        return [
            SharedKVLayer(
                file=self._file,
                offset=number * layer.nbytes,
                num_blocks=self.num_blocks,
                block_stride=layer.strides[0],
                block_bytes=layer.strides[0],
            )
            for number, layer in enumerate(self._layers)
        ]

    def fill(self, block: int, seed: int) -> None:
        """Write the bytes of a seed into a block."""
        tile = splitmix(seed)
        for layer, numbers in zip(self._layers, self._numbers, strict=True):
            np.add(tile, numbers, out=layer[block])

    def holds(self, block: int, seed: int) -> bool:
        """Whether every byte of a block is that of the seed."""
        tile = splitmix(seed)
        for layer, numbers in zip(self._layers, self._numbers, strict=True):
            np.add(tile, numbers, out=self._expected)
            if not np.array_equal(layer[block], self._expected):
                return False
        return True
