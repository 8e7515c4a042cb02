"""Each step of memory pressure is an Event on the Node, at a bounded rate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from kvoffload_agent.kube.access import Access
from kvoffload_agent.kube.client import KubeClient
from kvoffload_agent.kube.events import (
    BURST,
    NOTE_MAX,
    PATH,
    REFILL_SECONDS,
    Allowance,
    NodeEvents,
    Told,
    describe,
    manifest,
)
from kvoffload_agent.memory.pressure import Grow, Hold, Shrink
from kvoffload_agent.memory.snapshot import MIB

SHRINK = Shrink(
    bytes=64 * MIB, ceiling=128 * MIB, limited_by="memory limit of cgroup /a (v2)", slack=3 * MIB
)


def test_the_event_of_a_shrink_says_how_much_goes_what_stays_and_why() -> None:
    told = describe(SHRINK)
    assert told is not None
    assert (told.kind, told.reason, told.action) == (
        "Warning", "MemoryPressure", "ShrinkHostMemory",
    )  # fmt: skip
    assert told.note == (
        "KV cache in host memory gives back 64 MiB and keeps at most 128 MiB:"
        " memory limit of cgroup /a (v2) has 3 MiB left"
    )


@pytest.mark.parametrize(("ceiling", "bound"), [(256 * MIB, "256 MiB"), (None, "its budget")])
def test_the_event_of_growth_says_up_to_what(ceiling: int | None, bound: str) -> None:
    told = describe(Grow(ceiling=ceiling, slack=MIB))
    assert told is not None
    assert (told.kind, told.reason) == ("Normal", "MemoryPressureEnded")
    assert bound in told.note


def test_nothing_happened_is_not_told() -> None:
    assert describe(Hold()) is None


def test_a_note_of_any_path_fits() -> None:
    told = describe(Shrink(bytes=1, ceiling=0, limited_by="/x" * NOTE_MAX, slack=0))
    assert told is not None
    assert len(told.note) == NOTE_MAX


def test_the_event_is_about_the_node_as_kubectl_describe_looks_for_it() -> None:
    told = Told(kind="Normal", reason="R", action="A", note="n")
    made = manifest(told, node_name="n" * 200, now=datetime(2026, 1, 1, tzinfo=UTC))
    assert made["metadata"]["namespace"] == "default"
    assert made["regarding"] == {
        "apiVersion": "v1", "kind": "Node", "name": "n" * 200, "uid": "n" * 200,
    }  # fmt: skip
    assert made["eventTime"] == "2026-01-01T00:00:00.000000+00:00"
    assert len(made["reportingInstance"]) == 128


def test_a_burst_is_allowed_then_one_each_five_minutes() -> None:
    now = 100.0
    allowance = Allowance(lambda: now)
    assert [allowance.take() for _ in range(BURST + 1)] == [True] * BURST + [False]
    now += REFILL_SECONDS / 2
    assert not allowance.take()
    now += REFILL_SECONDS / 2
    assert [allowance.take(), allowance.take()] == [True, False]
    now += 1000 * REFILL_SECONDS
    assert sum(allowance.take() for _ in range(2 * BURST)) == BURST, "what is saved up is bounded"


class Server:
    """An API server that takes Events, or refuses them; for what a real one can't be made to do."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 201

    async def post(self, request: web.Request) -> web.Response:
        if self.status == 201:
            self.events.append(await request.json())
        return web.json_response({"message": "no"}, status=self.status)

    @property
    def notes(self) -> list[str]:
        return [event["note"] for event in self.events]


@contextlib.asynccontextmanager
async def telling(server: Server, clock: Iterator[float]) -> AsyncIterator[NodeEvents]:
    app = web.Application()
    app.router.add_post(PATH, server.post)
    async with TestServer(app) as listening:
        address = str(listening.make_url("")).rstrip("/")
        access = Access(server=address, tls=None, token=lambda: "")
        async with KubeClient(access, user_agent="test") as client:
            events = NodeEvents(client=client, node_name="node-1", clock=lambda: next(clock))
            task = asyncio.create_task(events.run())
            yield events
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what another task does has no event
            await asyncio.sleep(0.005)


async def test_steps_beyond_the_rate_are_counted_in_the_next_event() -> None:
    server = Server()
    times = [0.0] * (BURST + 4) + [REFILL_SECONDS] * 9
    async with telling(server, iter(times)) as events:
        for _ in range(BURST + 3):
            events.note(SHRINK)
        events.note(Hold())
        await until(lambda: len(server.events) >= BURST)
        events.note(Grow(ceiling=None, slack=0))
        await until(lambda: len(server.events) >= BURST + 1)
    assert not any("more steps" in note for note in server.notes[:BURST])
    assert server.notes[-1].endswith("; 3 more steps since the last Event")


async def test_an_event_that_is_refused_is_logged_and_the_next_one_told() -> None:
    server = Server()
    with capture_logs() as logs:
        async with telling(server, iter([0.0] * 9)) as events:
            server.status = 403
            events.note(SHRINK)
            await until(lambda: bool(logs))
            server.status = 201
            events.note(SHRINK)
            await until(lambda: len(server.events) >= 1)
    (line,) = [log for log in logs if log["event"] == "event not told"]
    assert (line["status"], line["reason"]) == (403, "MemoryPressure")
