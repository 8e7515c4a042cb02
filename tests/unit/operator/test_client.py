"""The client against answers that a healthy API server does not give."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvoffload_operator.kube.access import Access, TokenSource, load_access
from kvoffload_operator.kube.answers import decode, event
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import (
    AccessError,
    ClusterError,
    ConflictError,
    GoneError,
    NotFoundError,
    RequestError,
    ThrottledError,
)
from kvoffload_operator.kube.resources import NODES, PODS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Give a function that serves a handler and returns its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def access(url: str, token: Callable[[], str] = str) -> Access:
    return Access(server=url, tls=None, token=TokenSource(token))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AccessError),
        (403, AccessError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (422, RequestError),
        (429, ThrottledError),
        (500, ClusterError),
        (503, ClusterError),
    ],
)
def test_an_answer_becomes_the_error_of_who_must_act(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="told"):
        decode(b'{"message": "told", "reason": "R"}', status=status, retry_after=None)


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[1]", b"\xff\xfe"])
def test_an_error_without_a_status_object_is_an_error_all_the_same(raw: bytes) -> None:
    with pytest.raises(ClusterError):
        decode(raw, status=502, retry_after="soon")


def test_a_body_that_is_no_json_is_the_cluster_s_fault() -> None:
    with pytest.raises(ClusterError, match="no JSON"):
        decode(b"<html>", status=200, retry_after=None)


def test_an_error_message_is_cut_so_that_logs_carry_no_documents() -> None:
    with pytest.raises(RequestError) as caught:
        decode(b'{"message": "' + b"x" * 10_000 + b'"}', status=422, retry_after=None)

    assert len(str(caught.value)) == 300


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b'{"type": "ADDED"}'])
def test_a_broken_line_of_a_watch_is_the_cluster_s_fault(line: bytes) -> None:
    with pytest.raises(ClusterError):
        event(line)


async def test_a_throttled_request_waits_as_long_as_it_was_told_and_tries_again(
    serve: Serve,
) -> None:
    tries: list[float] = []

    async def handler(_request: web.Request) -> web.Response:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            headers = {"Retry-After": "0.2"}
            return web.json_response({"message": "slow"}, status=429, headers=headers)
        return web.json_response({"ok": True})

    url = await serve(handler)
    seen: list[tuple[str, int]] = []
    async with KubeClient(
        access(url), user_agent="test", observe=lambda method, code: seen.append((method, code))
    ) as client:
        assert await client.request("GET", "/x") == {"ok": True}

    assert [later - earlier >= 0.2 for earlier, later in itertools.pairwise(tries)] == [True, True]
    assert seen == [("GET", 429), ("GET", 429), ("GET", 200)]


async def test_a_server_that_is_away_is_a_cluster_error() -> None:
    async with KubeClient(access("http://127.0.0.1:1"), user_agent="test") as client:
        with pytest.raises(ClusterError, match="did not answer"):
            await client.get(NODES, name="n1")


async def test_a_watch_that_falls_silent_is_given_up(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(3600)
        return response

    url = await serve(handler)
    async with KubeClient(access(url), user_agent="test") as client:
        with pytest.raises(ClusterError):
            async for _ in client.watch(NODES, resource_version="1", timeout_s=300, silence_s=0.1):
                pass


async def test_a_refused_token_is_read_again_for_the_next_request(serve: Serve) -> None:
    tokens = iter(["old", "new"])
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({}, status=401 if len(seen) == 1 else 200)

    url = await serve(handler)
    async with KubeClient(access(url, lambda: next(tokens)), user_agent="test") as client:
        with pytest.raises(AccessError):
            await client.get(NODES, name="n1")
        await client.get(NODES, name="n1")

    assert seen == ["Bearer old", "Bearer new"]


async def test_an_apply_takes_our_fields_by_force_under_our_name(serve: Serve) -> None:
    seen: dict[str, Any] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(
            path=request.path,
            query=dict(request.query),
            kind=request.content_type,
            body=await request.json(),
        )
        return web.json_response({})

    url = await serve(handler)
    async with KubeClient(access(url), user_agent="test") as client:
        await client.apply(PODS, {"spec": {}}, name="p", namespace="ns", subresource="status")

    assert seen == {
        "path": "/api/v1/namespaces/ns/pods/p/status",
        "query": {"fieldManager": "kvoffload-operator", "force": "true"},
        "kind": "application/apply-patch+yaml",
        "body": {"apiVersion": "v1", "kind": "Pod", "spec": {}},
    }


def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    now = [0.0]
    source = TokenSource(file.read_text, clock=lambda: now[0])

    assert source() == "one"
    file.write_text("two\n")
    assert source() == "one"
    now[0] = 61.0
    assert source() == "two"


@pytest.mark.parametrize("raw", [b"two\nlines", b"t\xc3\xb6ken", b"with blank"])
def test_a_token_that_no_header_can_carry_is_an_access_error(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(raw)
    source = TokenSource(lambda: file.read_text(encoding="ascii"))
    for _ in range(2):
        with pytest.raises(AccessError, match="token"):
            source()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a kubeconfig"),
        ("a: [", "not valid YAML"),
        ("contexts: []", "no current-context"),
        ("current-context: x", "no entry 'x' in contexts"),
    ],
)
def test_a_kubeconfig_that_is_of_no_use_says_why(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(AccessError, match=told):
        load_access(kubeconfig=str(path))


def test_without_any_access_the_message_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(AccessError, match="--kubeconfig"):
        load_access()


def test_a_kubeconfig_with_an_exec_plugin_gives_its_token(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho \'{"status": {"token": "from-plugin"}}\'\n')
    plugin.chmod(0o755)
    path = tmp_path / "config"
    path.write_text(
        f"""
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: team-a}}}}]
clusters: [{{name: k, cluster: {{server: "http://example/"}}}}]
users: [{{name: u, user: {{exec: {{command: {plugin}}}}}}}]
"""
    )
    found = load_access(kubeconfig=str(path))

    assert (found.server, found.namespace, found.token()) == (
        "http://example",
        "team-a",
        "from-plugin",
    )


def test_an_exec_plugin_that_fails_is_an_access_error(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        """
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "http://example"}}]
users: [{name: u, user: {exec: {command: /does/not/exist, installHint: install it}}}]
"""
    )
    with pytest.raises(AccessError, match="install it"):
        load_access(kubeconfig=str(path))
