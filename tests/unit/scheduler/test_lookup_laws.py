"""The invariants of section 9 that concern loads, on random configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
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
        for number, row in enumerate(letters or self.letters):
            for hit, written in (("H", True), ("P", False)):
                keys = [key for key, at in zip(world.hashes, row, strict=True) if at == hit]
                world.put(number, keys, written=written)
            for key, at in zip(world.hashes, row, strict=True):
                if at == "R":
                    world.tiers[0].answers[number, key] = Verdict.RETRY
        return world

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
    block = max(group.tokens_per_block for group in found)
    return Scene(
        groups=tuple(found),
        per_hash=per_hash,
        per_chunk=draw(st.integers(1, 3)),
        tokens=tokens,
        local=block * draw(st.integers(0, max(0, (tokens - 1) // block))),
        letters=tuple(draw(row) for _ in found),
        max_new=draw(st.none() | st.integers(0, 60)),
    )


@given(scenes(), st.integers(0, 70))
def test_a_cap_bounds_the_hit_and_never_lengthens_it(scene: Scene, cap: int) -> None:
    capped, free = scene.hit(cap), scene.hit()
    if capped is not None:
        assert 0 <= capped <= cap
    if capped is not None and free is not None:
        assert capped <= free


@given(scenes(letters="HHHM"), st.integers(0, 70), st.integers(0, 70))
def test_a_hit_never_shrinks_when_its_cap_grows(scene: Scene, one: int, other: int) -> None:
    low, high = scene.hit(min(one, other)), scene.hit(max(one, other))
    assert low is not None
    assert high is not None
    assert low <= high


@given(scenes())
def test_a_cap_of_0_asks_for_nothing(scene: Scene) -> None:
    world = scene.world()
    result = world.ask(RequestCaps(max_load_tokens=0), local=scene.local)
    assert result.tokens == 0
    assert not world.pool.asked


@given(scenes())
def test_a_hit_ends_within_the_prompt_and_leaves_a_token_to_windows(scene: Scene) -> None:
    hit = scene.hit()
    windowed = any(group.kind is not GroupKind.FULL for group in scene.groups)
    if hit:
        assert scene.local + hit <= scene.tokens - windowed
    if hit and scene.max_new is not None:
        assert hit <= scene.max_new


@given(scenes())
def test_only_a_key_that_is_not_ready_makes_a_request_wait(scene: Scene) -> None:
    hit = scene.hit()
    waits = any(letter in "PR" for row in scene.letters for letter in row)
    if hit is None:
        assert waits
    ready = tuple(row.replace("P", "H") for row in scene.letters)
    sure = replace(scene, letters=ready).hit()
    if hit is not None and sure is not None:
        assert hit <= sure


@given(scenes())
def test_asking_again_gives_the_same_answer(scene: Scene) -> None:
    world = scene.world()
    first = world.ask(local=scene.local, max_new=scene.max_new)
    assert world.match(world.handle, local=scene.local, max_new=scene.max_new) == first


@given(scenes())
def test_every_key_that_is_loaded_is_ready_and_every_block_has_its_chunk(scene: Scene) -> None:
    world = scene.world()
    hit = world.ask(local=scene.local, max_new=scene.max_new).tokens
    if not hit:
        return
    end = scene.local + hit
    tables = []
    for group in world.engine.geometry.groups:
        size = ceil_div(end, group.tokens_per_block)
        skipped = 0
        if group.kind is GroupKind.SLIDING_WINDOW:
            skipped = max(0, end - group.window_tokens + 1 - group.extra) // group.tokens_per_block
        elif group.windowed:
            skipped = size - 1
        skipped = max(skipped, scene.local // group.tokens_per_block)
        tables.append([0] * skipped + world.new_blocks(size - skipped))
    plan = world.alloc(world.handle, hit, tables).plan
    assert plan is not None
    refs = world.pool.host.table.refs[plan.slots]
    assert (refs > 0).all()
    begin = 0
    hashes = world.hashes
    for group, size in zip(world.engine.geometry.groups, plan.group_sizes, strict=True):
        wanted = [block for block in tables[group.number] if block]
        assert plan.blocks[begin : begin + size].tolist() == wanted
        for entry in range(size):
            at = plan.first[group.number] + entry
            slot = plan.slots[begin + entry : begin + entry + 1]
            [(number, key)] = world.pool.host.keys(slot)
            assert number == group.number
            last = (hashes.index(key) + 1) * scene.per_hash
            if group.eagle and last > end:
                last -= world.engine.geometry.eagle_margin  # the key of a tail proves more
            assert at * group.tokens_per_block < last
            assert (last - 1) // group.chunk == at * group.tokens_per_block // group.chunk
            assert plan.index[begin + entry] == at % scene.per_chunk
        begin += size
    world.idle()
    world.done(plan)
    assert (world.pool.host.table.refs[plan.slots] == 0).all()
