"""Reports about caps: what a request asked for, and what it got instead."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.reports.policy import POLICY, resolved
from tests.unit.scheduler.builders import StubTier, World, full, mamba

from kvoffload_agent.scheduler.types import Handoff
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.secondary import UndeclaredTierError, Verdict

F16 = full(16)
CPU = {"medium": "CPU", "locality": "Local"}


@pytest.mark.parametrize(("policy", "hit"), [({}, 16384), ({"load": {"maxTokens": 8192}}, 8192)])
def test_b11_a_cap_in_quotes_leaves_the_policys(policy: dict[str, Any], hit: int) -> None:
    found = resolved({"max_load_tokens": "0"}, **policy)
    world = World(F16, tokens=16384)
    world.put_all()
    assert world.ask(found.caps).tokens == hit
    assert found.invalid == ("max_load_tokens",)


@pytest.mark.parametrize("value", [-1, 1.0, True, [5], "1k"])
def test_b12_no_malformed_cap_lifts_the_policys(value: object) -> None:
    found = resolved({"max_load_tokens": value}, load={"maxTokens": 32})
    world = World(F16, tokens=64)
    world.put_all()
    result = world.ask(found.caps)
    assert (result.tokens, found.caps.sources[result.limited_by]) == (32, POLICY)
    assert found.invalid == ("max_load_tokens",)


@pytest.mark.parametrize(("policy", "hit"), [({}, 70), ({"load": {"maxTokens": 32}}, 32)])
def test_b13_a_cap_beyond_every_machine_word_is_no_cap_of_the_request(
    policy: dict[str, Any], hit: int
) -> None:
    found = resolved({"max_load_tokens": 2**70}, **policy)
    # With two tokens a hash, a hit may end inside a chunk: a cap, however large, would round it.
    world = World(full(2), tokens=70)
    world.put_all()
    assert found.invalid == ()
    assert world.ask(found.caps).tokens == hit


def test_b14_a_cap_of_one_chunk_from_inside_a_chunk_loads_nothing_and_is_the_reason() -> None:
    found = resolved(None, load={"maxTokens": 16})
    world = World(F16, tokens=64, per_hash=8)
    world.put_all()
    result = world.ask(found.caps, local=8)
    assert result.tokens == 0
    assert (result.limited_by, found.caps.sources[result.limited_by]) == ("load.maxTokens", POLICY)
    assert world.ask(resolved(None, load={"maxTokens": 24}).caps, local=8).tokens == 24


def test_b15_a_store_cap_of_0_stores_no_tail_either() -> None:
    world = World(F16, mamba(16), tokens=30, per_hash=4)
    handoff = Handoff(group=1, block=77, boundary=28)
    capped = world.request(resolved({"max_offload_tokens": 0}).caps)
    assert world.run(capped, 30, handoffs=[handoff]).stores == ()
    free = world.request(resolved({}).caps)
    assert len(world.run(free, 30, handoffs=[handoff]).stores) == 2, "chunk 0, and the tail"


@pytest.mark.parametrize("value", ["CPU", {}, ["CPU"]])
def test_b16_malformed_tiers_leave_the_policys_and_never_more(value: object) -> None:
    found = resolved({"kv_load_tiers": value}, load={"tiers": [CPU]})
    assert found.invalid == ("kv_load_tiers",)
    assert promoted(found.caps) == 0
    free = resolved({"kv_load_tiers": value}, localDisk={"capacity": "1Gi"})
    assert free.invalid == ("kv_load_tiers",)
    assert promoted(free.caps) == 1


@pytest.mark.parametrize(("value", "told"), [([{"Medium": "CPU"}], ("kv_load_tiers",)), ([{}], ())])
def test_b18_a_matcher_that_names_nothing_gets_the_policys_tiers_and_never_more(
    value: object, told: tuple[str, ...]
) -> None:
    found = resolved({"kv_load_tiers": value}, load={"tiers": [CPU]})
    assert found.invalid == told
    assert promoted(found.caps) == 0
    free = resolved({"kv_load_tiers": value}, localDisk={"capacity": "1Gi"})
    assert promoted(free.caps) == 1
    # Without bytes of disk in the policy no local storage is to be had, whatever the tiers say.
    assert promoted(resolved({"kv_load_tiers": value}).caps) == 0


@pytest.mark.parametrize("said", [{"locality": None}, {"medium": None}, {"locality": "Local"}])
def test_b19_a_tier_that_does_not_say_what_it_is_cannot_be_had(said: dict[str, Any]) -> None:
    with pytest.raises(UndeclaredTierError, match=rf"StubTier.*{next(iter(said))}"):
        PartitionPool(tiers=[StubTier(), StubTier(**said)])
    disk = {"capacity": "1Gi"}
    tiers = [{"medium": "Storage", "locality": "Local"}]
    local = resolved(None, load={"tiers": tiers}, localDisk=disk).caps
    assert [promoted(local, locality=at) for at in ("local", "remote")] == [1, 0]


def promoted(caps: Any, **tier_is: Any) -> int:
    """Return how many chunks a request reads from storage, where the only chunk is."""
    tier = StubTier(**tier_is)
    world = World(F16, tokens=16, tiers=[tier])
    tier.answers[0, world.hashes[0]] = Verdict.HIT
    world.ask(caps)
    world.idle()
    return len(tier.loads)
