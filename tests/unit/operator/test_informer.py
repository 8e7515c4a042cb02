"""The informer against a server whose stream breaks in every way a real one's does.

A real API server cannot be told to send a 410 or a broken line;
a scripted one over real sockets does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from kvoffload_operator.kube.access import Access, TokenSource
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.informer import Informer
from kvoffload_operator.kube.resources import NODES
from kvoffload_operator.kube.store import ObjectKey, Store

Json = dict[str, Any]


def node(name: str, version: int, **labels: str) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}}


def event(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


GONE = event("ERROR", {"code": 410, "reason": "Expired", "message": "too old", "kind": "Status"})


@dataclass
class Script:
    """Lists in order (the last one repeats) and streams in order (then silence)."""

    lists: list[tuple[int, list[Json]]]
    streams: list[list[bytes]] = field(default_factory=list)
    listed: int = 0
    queries: list[dict[str, str]] = field(default_factory=list)
    page: int = 500

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if "watch" in request.query:
            return await self._watch(request)
        version, items = self.lists[min(self.listed, len(self.lists) - 1)]
        start = int(request.query.get("continue", "0"))
        metadata = {"resourceVersion": str(version)}
        if start + self.page < len(items):
            metadata["continue"] = str(start + self.page)
        else:
            self.listed += 1
        return web.json_response({"metadata": metadata, "items": items[start : start + self.page]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.streams:
            await asyncio.sleep(3600)
        for data in self.streams.pop(0):
            await response.write(data)
        return response


Run = Callable[[Script, Callable[[list[tuple[str, str]]], bool]], Awaitable[list[tuple[str, str]]]]


@pytest.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """Run an informer over a script until its reports fulfil a condition."""
    # Back-off is tested by itself; here it would only make the test wait.
    monkeypatch.setattr(
        "kvoffload_operator.kube.informer.Backoff.next", lambda _self: 0.01, raising=True
    )
    runners: list[web.AppRunner] = []

    async def go(
        script: Script, until: Callable[[list[tuple[str, str]]], bool]
    ) -> list[tuple[str, str]]:
        app = web.Application()
        app.router.add_get("/{path:.*}", script.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        access = Access(server=f"http://127.0.0.1:{port}", tls=None, token=TokenSource(str))
        reports: list[tuple[str, str]] = []
        enough = asyncio.Event()

        def changed(key: ObjectKey, old: Json | None, new: Json | None) -> None:
            verb = "deleted" if new is None else "added" if old is None else "changed"
            reports.append((verb, key.name))
            if until(reports):
                enough.set()

        async with KubeClient(access, user_agent="test") as client:
            informer: Informer[Json] = Informer(
                client=client,
                resource=NODES,
                store=Store(
                    parse=lambda item: dict(item["metadata"].get("labels", {})), changed=changed
                ),
            )
            task = asyncio.create_task(informer.run())
            async with asyncio.timeout(10):
                await enough.wait()
                await informer.synced.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return reports

    yield go
    for runner in runners:
        await runner.cleanup()


async def test_events_after_the_list_are_reported_in_order(run: Run) -> None:
    script = Script(
        lists=[(10, [node("a", 5)])],
        streams=[
            [
                event("ADDED", node("b", 11)),
                event("MODIFIED", node("a", 12, pool="gpu")),
                event("DELETED", node("b", 13)),
            ]
        ],
    )
    reports = await run(script, lambda seen: len(seen) == 4)

    assert reports == [("added", "a"), ("added", "b"), ("changed", "a"), ("deleted", "b")]
    assert script.queries[0] == {"limit": "500", "resourceVersion": "0"}
    assert script.queries[1]["resourceVersion"] == "10"
    assert script.queries[1]["allowWatchBookmarks"] == "true"


async def test_a_deletion_that_nobody_saw_is_reported_after_410(run: Run) -> None:
    script = Script(
        lists=[(10, [node("a", 5), node("b", 6)]), (20, [node("b", 6)])], streams=[[GONE]]
    )
    reports = await run(script, lambda seen: ("deleted", "a") in seen)

    assert reports == [("added", "a"), ("added", "b"), ("deleted", "a")]
    lists = [query for query in script.queries if "watch" not in query]
    assert "resourceVersion" not in lists[1], "a list after an error must be current"


async def test_any_other_error_event_lists_again_too(run: Run) -> None:
    error = event("ERROR", {"code": 500, "message": "etcd is away", "kind": "Status"})
    script = Script(lists=[(10, [node("a", 5)]), (20, [])], streams=[[error]])

    assert ("deleted", "a") in await run(script, lambda seen: ("deleted", "a") in seen)


async def test_a_stream_that_ends_goes_on_from_the_last_bookmark(run: Run) -> None:
    script = Script(
        lists=[(10, [node("a", 5)])],
        streams=[[event("BOOKMARK", node("", 99))], [event("DELETED", node("a", 100))]],
    )
    await run(script, lambda seen: ("deleted", "a") in seen)

    watches = [query["resourceVersion"] for query in script.queries if "watch" in query]
    assert watches[:2] == ["10", "99"]
    assert script.listed == 1


async def test_a_line_longer_than_any_buffer_is_one_event(run: Run) -> None:
    big = event("ADDED", node("big", 11, note="x" * 3_000_000))
    pieces = [big[start : start + 70_000] for start in range(0, len(big), 70_000)]
    script = Script(lists=[(10, [])], streams=[pieces])

    assert await run(script, bool) == [("added", "big")]


async def test_a_broken_line_does_not_end_the_informer(run: Run) -> None:
    script = Script(
        lists=[(10, [])], streams=[[b"{half a line\n"], [event("ADDED", node("a", 11))]]
    )

    assert await run(script, bool) == [("added", "a")]


async def test_a_list_is_taken_in_pages(run: Run) -> None:
    script = Script(lists=[(10, [node(f"n{number}", 5) for number in range(7)])], page=3)
    reports = await run(script, lambda seen: len(seen) == 7)

    assert len(reports) == 7
    assert [query.get("continue") for query in script.queries[:3]] == [None, "3", "6"]


async def test_an_event_older_than_what_is_kept_is_not_reported(run: Run) -> None:
    script = Script(
        lists=[(10, [node("a", 9, v="new")])],
        streams=[[event("MODIFIED", node("a", 8, v="old")), event("ADDED", node("b", 11))]],
    )

    assert await run(script, lambda seen: ("added", "b") in seen) == [
        ("added", "a"),
        ("added", "b"),
    ]


async def test_a_change_of_what_is_not_kept_is_not_reported(run: Run) -> None:
    same = {
        "metadata": {"name": "a", "resourceVersion": "12", "labels": {}, "annotations": {"x": "y"}}
    }
    script = Script(
        lists=[(10, [node("a", 9)])],
        streams=[[event("MODIFIED", same), event("ADDED", node("b", 13))]],
    )

    assert await run(script, lambda seen: ("added", "b") in seen) == [
        ("added", "a"),
        ("added", "b"),
    ]
