"""Several engines of one partition."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.scheduler.builders import World, full, hashes_of

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import RequestCaps, ScheduledRequest, StepInput
from kvoffload_agent.tiers.host import DuplicateKeyError
from kvoffload_agent.tiers.slots import READY


class Two(World):
    """A world with a second engine on the same pool."""

    def __init__(self, *, tokens: int, slots: int) -> None:
        super().__init__(full(4), tokens=tokens, slots=slots)
        self.other = EngineScheduler(self.config, self.pool, safe_reset=True)
        self._strangers = 0

    def other_asks(self, handle: int = 1) -> int | None:
        self.other.new_request(
            handle,
            num_tokens=self.tokens,
            num_prompt_tokens=self.tokens,
            hashes=self.hashes,
            caps=RequestCaps(),
            skip_reading_prefix_cache=False,
        )
        return self.other.match(handle, computed=0, max_new_tokens=None, now=0.0).tokens

    def other_can_store(self, count: int) -> bool:
        """Whether ``count`` chunks that nobody knows find room, found out by storing them."""
        if not count:
            return True
        self._strangers += 1
        handle = 100 + self._strangers
        self.other.new_request(
            handle,
            num_tokens=4 * count,
            num_prompt_tokens=4 * count,
            hashes=hashes_of(handle, count),
            caps=RequestCaps(),
            skip_reading_prefix_cache=False,
        )
        step = StepInput(
            requests=[
                ScheduledRequest(
                    handle=handle,
                    computed=0,
                    scheduled=4 * count,
                    blocks=[np.arange(count, dtype=np.int64)],
                    new=True,
                )
            ]
        )
        stores = self.other.step(step, now=0.0).stores
        assert len(stores) <= 1
        return bool(stores)


def test_what_one_engine_stored_the_other_loads() -> None:
    two = Two(tokens=16, slots=8)
    [plan] = two.run(two.request(), 16).stores
    assert two.other_asks() is None
    two.done(plan)
    assert two.other_asks(2) == 16


def test_a_promised_chunk_stays_until_the_next_step_but_one() -> None:
    two = Two(tokens=16, slots=4)
    two.put_all()
    assert two.other_asks() == 16
    strangers = [b"%032d" % at for at in range(4)]
    handle = two.request(hashes=strangers)
    assert two.run(handle, 16).stores == ()
    two.other.step(StepInput(requests=[]), now=0.0)
    assert two.run(handle, 0, blocks=[[]]).stores == ()
    two.other.step(StepInput(requests=[]), now=0.0)
    [plan] = two.run(handle, 0, blocks=[[]]).stores
    assert len(plan.keys) == 4


@pytest.mark.parametrize(
    ("cap", "local", "promised"), [(None, 0, 4), (8, 0, 2), (4, 0, 1), (None, 8, 2), (0, 0, 0)]
)
def test_only_chunks_of_the_promise_are_kept_from_other_engines(
    cap: int | None, local: int, promised: int
) -> None:
    two = Two(tokens=16, slots=4)
    two.put_all()
    handle = two.request(RequestCaps(max_load_tokens=cap))
    assert two.match(handle, local=local).tokens == 4 * promised
    assert two.other_can_store(4 - promised)
    assert not two.other_can_store(5 - promised)


def test_asking_again_gives_up_what_was_promised_before() -> None:
    two = Two(tokens=16, slots=4)
    two.put_all()
    handle = two.request()
    assert two.match(handle).tokens == 16
    assert not two.other_can_store(1)
    two.engine.set_caps(handle, RequestCaps(max_load_tokens=4))
    assert two.match(handle).tokens == 4
    assert two.other_can_store(3)


def test_a_dead_engine_gives_back_pins_and_half_written_slots() -> None:
    two = Two(tokens=16, slots=8)
    two.put(0, two.hashes[:2])
    handle = two.request()
    assert two.match(handle).tokens == 8
    two.alloc(handle, 8)
    assert two.other_asks() == 8
    writer = two.request(hashes=[b"%032d" % at for at in range(4)])
    assert len(two.run(writer, 16).stores) == 1
    two.engine.close()
    refs = two.pool.host.table.refs[:8]
    assert (refs <= READY).all()
    assert two.pool.free_slots == 6
    assert two.other_asks(2) == 8


def test_slots_of_a_reset_are_free_once_their_copies_ended() -> None:
    two = Two(tokens=16, slots=4)
    two.engine = EngineScheduler(two.config, two.pool, safe_reset=True)
    [plan] = two.run(two.request(), 16).stores
    two.engine.reset()
    assert two.pool.free_slots == 0
    assert two.other_asks() == 0
    flush = two.idle().flush
    assert flush == (plan.job,)
    two.done(plan)
    assert two.pool.free_slots == 4


def test_hashes_that_repeat_are_refused_and_change_nothing() -> None:
    two = Two(tokens=16, slots=8)
    handle = two.request(hashes=[b"%032d" % 1] * 4)
    with pytest.raises(DuplicateKeyError):
        two.run(handle, 16)
    assert two.pool.free_slots == 8


def test_an_offer_that_was_refused_is_not_looked_at_again_until_something_changed() -> None:
    world = World(full(4), tokens=16, slots=3)
    world.put(0, [b"%032d" % 1], written=False)
    handle = world.request()
    offers = []
    offer = world.pool.host.offer
    world.pool.host.offer = lambda *args, **more: offers.append(1) or offer(*args, **more)  # type: ignore[method-assign,func-returns-value]
    assert world.run(handle, 16).stores == ()
    for _ in range(5):
        assert world.run(handle, 0, blocks=[[]]).stores == ()
    assert len(offers) == 1
    world.pool.add_slots(2)
    assert len(world.run(handle, 0, blocks=[[]]).stores) == 1
