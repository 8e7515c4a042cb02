"""Random configurations, and random places for the keys of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from hypothesis import strategies as st
from tests.unit.scheduler.builders import StubTier, World

from kvoffload_agent.scheduler.geometry import ceil_div
from kvoffload_agent.scheduler.types import GroupConfig, GroupKind, RequestCaps
from kvoffload_agent.tiers.secondary import Verdict


@dataclass(frozen=True)
class Scene:
    """A configuration, a prompt, and where each key of it is."""

    groups: tuple[GroupConfig, ...]
    per_hash: int
    per_chunk: int
    tokens: int
    local: int
    letters: tuple[str, ...]
    max_new: int | None

    def world(self, letters: tuple[str, ...] | None = None) -> World:
        world = World(
            *self.groups,
            tokens=self.tokens,
            per_hash=self.per_hash,
            per_chunk=self.per_chunk,
            tiers=[StubTier()],
        )
        self.fill(world, letters)
        return world

    def fill(self, world: World, letters: tuple[str, ...] | None = None) -> None:
        """Put every key where its letter says: H, P, R as for ``World.put_chunks``."""
        for number, row in enumerate(letters or self.letters):
            for hit, written in (("H", True), ("P", False)):
                keys = [key for key, at in zip(world.hashes, row, strict=True) if at == hit]
                world.put(number, keys, written=written)
            for key, at in zip(world.hashes, row, strict=True):
                if at == "R":
                    world.tiers[0].answers[number, key] = Verdict.RETRY

    def tables(self, world: World, end: int) -> list[list[int]]:
        """Return the block tables that an engine makes for a load up to ``end``."""
        tables = []
        for group in world.engine.geometry.groups:
            size = ceil_div(end, group.tokens_per_block)
            skipped = 0
            if group.kind is GroupKind.SLIDING_WINDOW:
                before = max(0, end - group.window_tokens + 1 - group.extra)
                skipped = before // group.tokens_per_block
            elif group.windowed:
                skipped = size - 1
            skipped = max(skipped, self.local // group.tokens_per_block)
            tables.append([0] * skipped + world.new_blocks(size - skipped))
        return tables

    def hit(self, cap: int | None = None) -> int | None:
        caps = RequestCaps(max_load_tokens=cap)
        return self.world().ask(caps, local=self.local, max_new=self.max_new).tokens


@st.composite
def groups(draw: st.DrawFn, per_hash: int) -> GroupConfig:
    kind = draw(st.sampled_from(GroupKind))
    return GroupConfig(
        kind=kind,
        tokens_per_block=per_hash * draw(st.integers(1, 4)),
        window=draw(st.integers(1, 40)),
        eagle=kind in (GroupKind.FULL, GroupKind.SLIDING_WINDOW) and draw(st.booleans()),
        extra_retained_tokens=draw(st.integers(0, 3)),
    )


@st.composite
def scenes(draw: st.DrawFn, letters: str = "HHHHMPR") -> Scene:
    per_hash = draw(st.sampled_from([1, 2, 4]))
    found = draw(st.lists(groups(per_hash), min_size=1, max_size=3))
    if draw(st.booleans()):
        block = found[0].tokens_per_block
        align = GroupConfig(kind=GroupKind.MAMBA, tokens_per_block=block, mamba_align=True)
        found = [group for group in found if group.kind is GroupKind.FULL]
        found = [replace(group, tokens_per_block=block) for group in found] + [align]
    tokens = draw(st.integers(1, 60))
    row = st.text(letters, min_size=tokens // per_hash, max_size=tokens // per_hash)
    # An engine's own prefix cache hits end where a block of every group does.
    block = lcm(*(group.tokens_per_block for group in found))
    return Scene(
        groups=tuple(found),
        per_hash=per_hash,
        per_chunk=draw(st.integers(1, 3)),
        tokens=tokens,
        local=block * draw(st.integers(0, max(0, (tokens - 1) // block))),
        letters=tuple(draw(row) for _ in found),
        max_new=draw(st.none() | st.integers(0, 60)),
    )
