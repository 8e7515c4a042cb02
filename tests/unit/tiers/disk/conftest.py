from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.tiers.disk.harness import Disk, Slab


@pytest.fixture
def slab() -> Iterator[Slab]:
    # 5,000 bytes: neither a whole page nor a whole sector, on two ranks.
    made = Slab(count=64, ranks=2, row_bytes=5_000)
    yield made
    made.close()


@pytest.fixture
def life(tmp_path: Path, slab: Slab) -> Iterator[Callable[..., Disk]]:
    """Begin a life of the agent; the one before it ends."""
    alive: list[Disk] = []

    def begin(**options: Any) -> Disk:
        while alive:
            alive.pop().close()
        alive.append(Disk(**{"root": tmp_path / "disk", "slab": slab, **options}))
        return alive[0]

    yield begin
    while alive:
        alive.pop().close()
