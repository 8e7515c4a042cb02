"""The invariants of section 9 that concern loads, on random configurations."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.scenes import Scene, scenes

from kvoffload_agent.scheduler.types import GroupKind, RequestCaps


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
    world = scene.world()
    hit = world.ask(local=scene.local, max_new=scene.max_new).tokens
    letters = [dict(zip(world.hashes, row, strict=True)) for row in scene.letters]
    if hit is None:
        assert {letters[group][key] for group, key in world.pool.asked} & set("PR")
    ready = tuple(row.replace("P", "H") for row in scene.letters)
    sure = replace(scene, letters=ready).hit()
    if hit is not None and sure is not None:
        assert hit <= sure


@given(scenes())
def test_asking_again_gives_the_same_answer(scene: Scene) -> None:
    world = scene.world()
    first = world.ask(local=scene.local, max_new=scene.max_new)
    assert world.match(world.handle, local=scene.local, max_new=scene.max_new) == first


@given(scenes(letters="HHHM"))
def test_only_a_load_of_the_same_keys_makes_a_request_wait_that_finds_all_ready(
    scene: Scene,
) -> None:
    world = scene.world()
    hit = world.ask(local=scene.local).tokens
    assert hit is not None
    tables = scene.tables(world, scene.local + hit)
    plan = world.alloc(world.handle, hit, tables).plan
    world.idle()
    other = world.request()
    answer = world.match(other, local=scene.local).tokens
    assert answer is None if plan is not None and plan.keys else answer == hit
    assert (world.match(world.handle, local=scene.local).tokens is None) == (plan is not None)
    if plan is not None:
        world.done(plan)
    assert world.match(other, local=scene.local).tokens == hit


@given(scenes())
def test_every_key_that_is_loaded_is_ready_and_every_block_has_its_chunk(scene: Scene) -> None:
    world = scene.world()
    hit = world.ask(local=scene.local, max_new=scene.max_new).tokens
    if not hit:
        return
    end = scene.local + hit
    tables = scene.tables(world, end)
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
