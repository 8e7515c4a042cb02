"""A policy's cap and a request's compose to the smaller of those that are there, in every group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.reports.policy import POLICY, resolved
from tests.unit.scheduler.builders import StubTier, World, full, sliding
from tests.unit.scheduler.scenes import Scene, scenes

from kvoffload_agent.scheduler.types import RequestCaps

caps = st.none() | st.integers(0, 70)
malformed = st.sampled_from(["8", -1, 8.0, True, [8], {}])


def under(field: str, policy: int | None, request: object, **more: Any) -> Any:
    """Return what a request gets where policy and request may each set one cap."""
    name = {"load": "max_load_tokens", "store": "max_offload_tokens"}[field]
    spec: dict[str, Any] = {} if policy is None else {field: {"maxTokens": policy, **more}}
    spec["localDisk"] = {"capacity": "1Gi"}  # the tier of a scene is the local disk
    return resolved({} if request is None else {name: request}, **spec)


def smaller(*given: int | None) -> int | None:
    return min((cap for cap in given if cap is not None), default=None)


@given(scenes(), caps, caps)
def test_a_load_under_both_caps_is_that_under_the_smaller(
    scene: Scene, policy: int | None, request: int | None
) -> None:
    both = under("load", policy, request).caps
    found = scene.world().ask(both, local=scene.local, max_new=scene.max_new)
    assert found.tokens == scene.hit(smaller(policy, request))
    if found.limited_by == "load.maxTokens":
        cap = smaller(policy, request)
        assert cap is not None
        lower = request is not None and (policy is None or request < policy)
        assert both.sources[found.limited_by] == ("request" if lower else POLICY)


@given(scenes(), caps, malformed)
def test_a_malformed_cap_of_a_request_changes_nothing(
    scene: Scene, policy: int | None, request: object
) -> None:
    found = under("load", policy, request)
    assert found.invalid == ("max_load_tokens",)
    world = scene.world()
    assert world.ask(found.caps, local=scene.local, max_new=scene.max_new).tokens == scene.hit(
        policy
    )


@given(caps, caps, st.integers(1, 60), st.integers(1, 3))
def test_a_store_under_both_caps_is_that_under_the_smaller_in_every_group(
    policy: int | None, request: int | None, tokens: int, per_chunk: int
) -> None:
    def stored(found: RequestCaps) -> list[list[int]]:
        world = World(full(4), sliding(4, 8), full(8), tokens=tokens, per_chunk=per_chunk)
        plans = world.run(world.request(found), tokens).stores
        return [sorted(world.chunks_of(plans, group)) for group in range(3)]

    both = stored(under("store", policy, request).caps)
    cap = smaller(policy, request)
    assert both == stored(RequestCaps(max_offload_tokens=cap))
    for chunks, block in zip(both, (4, 4, 8), strict=True):
        end = min(tokens, tokens if cap is None else cap)
        assert all((chunk + 1) * block * per_chunk <= end for chunk in chunks)


@given(scenes(), caps, caps)
def test_a_store_cap_changes_no_load(scene: Scene, load: int | None, store: int | None) -> None:
    caps_of_both = RequestCaps(max_load_tokens=load, max_offload_tokens=store)
    found = scene.world().ask(caps_of_both, local=scene.local, max_new=scene.max_new)
    assert found.tokens == scene.hit(load)


@pytest.mark.parametrize("tiers", [None, [], [{"medium": "cpu"}]])
@pytest.mark.parametrize(("cap", "hit"), [(None, 64), (32, 32), (0, 0)])
def test_tiers_filter_no_host_memory_and_caps_filter_no_tier(
    tiers: object, cap: int | None, hit: int
) -> None:
    world = World(full(16), tokens=64, tiers=[StubTier()])
    world.put_all()
    found = resolved({"kv_load_tiers": tiers, "max_load_tokens": cap})
    assert world.ask(found.caps).tokens == hit


@pytest.mark.parametrize(("asked", "expected"), [(16, 48), (None, 48), (0, 48)])
def test_a_policy_that_ignores_requests_does_so(asked: int | None, expected: int) -> None:
    found = resolved({"max_load_tokens": asked}, load={"maxTokens": 48}, requestOverride="Ignore")
    world = World(full(16), tokens=64)
    world.put_all()
    assert world.ask(found.caps).tokens == expected
