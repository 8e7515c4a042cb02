"""Whether a block still holds the KV that a block table names it for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Contents:
    """Numbers what an engine's blocks hold: a block gets the next number when it is given anew.

    A table keeps naming blocks that left its request's window, which the engine gives to others.
    Who took a number together with a block can tell later whether it is the same KV. A block that
    is shared, its KV with it, keeps its number.
    One dictionary entry for each block, however many requests there were.
    """

    def __init__(self) -> None:
        self._number: dict[int, int] = {}
        self._next = 1

    def given(self, blocks: Iterable[int]) -> None:
        """These blocks will be written anew."""
        self._number.update(dict.fromkeys(blocks, self._next))
        self._next += 1

    def of(self, blocks: Sequence[int]) -> list[int]:
        """Return the number of each block's content."""
        number = self._number
        return [number.get(block, 0) for block in blocks]
