"""The work queue's laws, under virtual time."""

import asyncio
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.virtual_time import in_virtual_time

from kvoffload_operator.queue import Lane, QueueCore, WorkQueue


def core() -> QueueCore[str]:
    return QueueCore(rng=random.Random(1))


def test_a_key_that_waits_is_not_added_twice() -> None:
    queue = core()
    queue.add("a", now=0.0)
    queue.add("a", now=1.0)

    assert queue.take(now=2.0) == ("a", 2.0)
    assert queue.take(now=2.0) is None


def test_a_key_added_while_processed_comes_again_only_after_done() -> None:
    queue = core()
    queue.add("a", now=0.0)
    queue.take(now=0.0)
    queue.add("a", now=1.0)

    assert queue.take(now=1.0) is None
    assert queue.done("a", now=2.0) == 2.0
    assert queue.take(now=2.0) == ("a", 0.0)


def test_a_change_goes_before_a_resync() -> None:
    queue = core()
    queue.add("resync", now=0.0, lane=Lane.RESYNC)
    queue.add("change", now=1.0)

    assert queue.take(now=1.0) == ("change", 0.0)
    assert queue.take(now=1.0) == ("resync", 1.0)


def test_a_change_promotes_a_key_that_waits_as_resync_and_it_is_handed_out_once() -> None:
    queue = core()
    queue.add("other", now=0.0, lane=Lane.RESYNC)
    queue.add("a", now=0.0, lane=Lane.RESYNC)
    queue.add("a", now=1.0)

    assert queue.take(now=2.0) == ("a", 2.0)
    queue.done("a", now=2.0)
    assert queue.take(now=2.0) == ("other", 2.0)
    assert queue.take(now=2.0) is None


def test_a_steady_stream_of_changes_does_not_starve_a_resync() -> None:
    queue = core()
    queue.add("resync", now=0.0, lane=Lane.RESYNC)
    taken = []
    for number in range(40):
        queue.add(f"change-{number}", now=0.0)
        took = queue.take(now=0.0)
        assert took is not None
        taken.append(took[0])

    assert "resync" in taken


def test_failures_back_off_exponentially_to_a_minute_and_a_success_forgets_them() -> None:
    queue = core()
    delays = [queue.retry("a", now=0.0) for _ in range(20)]

    assert 0.005 <= delays[0] <= 0.00625
    assert all(later > earlier for earlier, later in itertools.pairwise(delays[:13]))
    assert 60.0 <= delays[-1] <= 75.0
    assert queue.attempts("a") == 20
    queue.forget("a")
    assert queue.attempts("a") == 0


def test_a_delayed_key_is_handed_out_when_due_and_not_before() -> None:
    queue = core()
    queue.add_after("a", now=0.0, delay=5.0)

    assert queue.due() == 5.0
    assert queue.take(now=4.9) is None
    assert queue.take(now=5.0) == ("a", 0.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "resync", "take", "done", "retry"]), st.sampled_from("abc")
        ),
        max_size=60,
    )
)
def test_no_key_is_ever_with_two_workers_and_none_that_was_added_is_lost(
    steps: list[tuple[str, str]],
) -> None:
    queue = core()
    held: set[str] = set()
    wanted: set[str] = set()
    for now, (step, key) in enumerate(steps):
        if step in {"add", "resync"}:
            queue.add(key, now=now, lane=Lane.CHANGE if step == "add" else Lane.RESYNC)
            wanted.add(key)
        elif step == "retry":
            queue.retry(key, now=now)
            wanted.add(key)
        elif step == "take" and (took := queue.take(now=now)):
            assert took[0] not in held
            held.add(took[0])
            wanted.discard(took[0])
        elif step == "done" and key in held:
            queue.done(key, now=now)
            held.discard(key)
    for key in sorted(held):
        queue.done(key, now=1000)
    rest = set()
    while took := queue.take(now=1000):
        rest.add(took[0])
    assert wanted <= rest


def test_nothing_is_handed_out_before_the_queue_is_opened_and_nothing_is_lost() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(clock=asyncio.get_running_loop().time)
        queue.add("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await queue.take()
        queue.open()
        key, waited = await queue.take()

        assert (key, waited) == ("a", pytest.approx(100, abs=1))

    in_virtual_time(main())


def test_a_worker_wakes_when_a_delayed_key_is_due() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue(clock=loop.time)
        queue.open()
        started = loop.time()
        queue.add_after("a", delay=30.0)

        assert (await queue.take())[0] == "a"
        assert loop.time() - started == pytest.approx(30.0, abs=0.1)

    in_virtual_time(main())


def test_an_idle_worker_is_woken_by_an_add() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue(clock=loop.time)
        queue.open()
        loop.call_later(7.0, queue.add, "a")
        async with asyncio.timeout(10):
            assert (await queue.take())[0] == "a"

    in_virtual_time(main())
