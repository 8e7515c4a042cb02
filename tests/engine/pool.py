"""The device's block pool with its prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference-counted blocks; block 0 is the null block and never handed out.

    Blocks nobody uses stay cached until they are the least recently freed and a block is needed.
    """

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def cached_prefix(self, hashes: Sequence[bytes]) -> list[int]:
        """Return blocks that hold the longest cached prefix; take them with ``share``."""
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to cached blocks."""
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def allocate(self, count: int) -> list[int] | None:
        """Return blocks whose bytes may be overwritten, or None if there are too few."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self._references[block] = 1
        return blocks

    def register(self, block: int, block_hash: bytes) -> None:
        """Let others find a full block; the first block with a hash stays the one found."""
        if block not in self._hash_of and block_hash not in self._block_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block

    def has_hash(self, block: int) -> bool:
        return block in self._hash_of

    def release(self, blocks: Sequence[int]) -> None:
        """End a request's use of its table; its tail is evicted first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def unregister(self, blocks: Iterable[int]) -> None:
        """Let nobody find these blocks any more."""
        for block in blocks:
            self._forget(block)

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]
