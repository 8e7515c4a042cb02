"""Why a load was shortened, and how long a request waits for one."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import World, full, sliding

from kvoffload_agent.scheduler.types import RequestCaps


@pytest.mark.parametrize(
    ("cap", "have", "reason"),
    [
        (20, "HHHH", "load.maxTokens"),
        (0, "HHHH", "load.maxTokens"),
        (15, "HHHH", "load.maxTokens"),
        (64, "HHHH", ""),
        (1000, "HHHH", ""),
        (None, "HHHH", ""),
        (48, "HMHH", ""),
        (48, "M", ""),
    ],
)
def test_a_cap_is_named_only_where_it_shortened_the_hit(
    cap: int | None, have: str, reason: str
) -> None:
    world = World(full(16), tokens=64)
    world.put_chunks({0: have})
    assert world.ask(RequestCaps(max_load_tokens=cap)).limited_by == reason


@pytest.mark.parametrize(
    ("local", "max_new", "cap", "reason"),
    [
        (48, None, 16, ""),
        (48, None, 20, ""),
        (32, None, 16, "load.maxTokens"),
        (0, 32, 48, ""),
        (0, 32, 32, ""),
        (0, 32, 16, "load.maxTokens"),
    ],
)
def test_a_cap_is_not_named_where_the_rest_of_the_prompt_or_of_the_step_is_shorter(
    local: int, max_new: int | None, cap: int, reason: str
) -> None:
    world = World(full(16), tokens=64)
    world.put_all()
    result = world.ask(RequestCaps(max_load_tokens=cap), local=local, max_new=max_new)
    assert result.limited_by == reason


def test_a_miss_is_not_put_down_to_the_minimum() -> None:
    world = World(full(16), tokens=64)
    result = world.ask(RequestCaps(min_load_tokens=33))
    assert (result.tokens, result.limited_by) == (0, "")


def test_a_hit_of_one_token_is_below_a_minimum_of_two() -> None:
    world = World(full(1), tokens=4)
    world.put_chunks({0: "HM"})
    result = world.ask(RequestCaps(min_load_tokens=2))
    assert (result.tokens, result.limited_by) == (0, "load.minTokens")


def test_a_request_that_may_not_read_is_shortened_by_no_policy() -> None:
    world = World(full(4), tokens=16)
    world.put_all()
    handle = world.request(RequestCaps(load_timeout_seconds=0.0), skip_reading=True)
    result = world.match(handle)
    assert (result.tokens, result.limited_by) == (0, "")


def test_a_hit_below_the_minimum_is_not_loaded_and_the_minimum_is_named() -> None:
    world = World(full(16), tokens=64)
    world.put_chunks({0: "HH"})
    result = world.ask(RequestCaps(min_load_tokens=33))
    assert (result.tokens, result.limited_by) == (0, "load.minTokens")
    assert world.ask(RequestCaps(min_load_tokens=32)).tokens == 32


def test_a_request_waits_for_a_chunk_no_longer_than_its_deadline() -> None:
    world = World(full(4), sliding(4, 8), tokens=17)
    for group in (0, 1):
        world.put(group, world.hashes, written=False)
    handle = world.request(RequestCaps(load_timeout_seconds=2.0))

    def ask(now: float) -> tuple[int | None, str]:
        found = world.engine.match(handle, computed=0, max_new_tokens=None, now=now)
        return found.tokens, found.limited_by

    assert ask(10.0) == (None, "")
    assert ask(11.9) == (None, "")
    assert ask(12.0) == (0, "load.timeoutSeconds")
    assert ask(12.1) == (0, "load.timeoutSeconds")


def test_without_a_deadline_it_waits_for_ever() -> None:
    world = World(full(4), tokens=8)
    world.put(0, world.hashes, written=False)
    handle = world.request()
    for now in (0.0, 1e9):
        found = world.engine.match(handle, computed=0, max_new_tokens=None, now=now)
        assert found.tokens is None


def test_caps_can_change_between_two_decisions() -> None:
    world = World(full(4), tokens=16)
    world.put_all()
    assert world.ask(RequestCaps(max_load_tokens=4)).tokens == 4
    world.engine.set_caps(world.handle, RequestCaps(max_load_tokens=8))
    assert world.match(world.handle).tokens == 8
    storing = world.request(
        RequestCaps(max_offload_tokens=0), hashes=[b"%032d" % at for at in range(4)]
    )
    assert world.run(storing, 8).stores == ()
    world.engine.set_caps(storing, RequestCaps())
    [plan] = world.run(storing, 8).stores
    assert len(plan.keys) == 4
