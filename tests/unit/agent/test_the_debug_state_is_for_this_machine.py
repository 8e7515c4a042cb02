"""Probes and metrics are for the cluster; what names pods and policies is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry

from kvoffload_agent.state import Health
from kvoffload_agent.web import is_local, make_app


@pytest.mark.parametrize("remote", [None, "", "127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_and_unix_sockets_are_local(remote: str | None) -> None:
    assert is_local(remote)


@pytest.mark.parametrize("remote", ["10.0.0.7", "0.0.0.0", "fe80::1", "::ffff:10.0.0.7", "host"])
def test_everything_else_is_not(remote: str) -> None:
    assert not is_local(remote)


@pytest.mark.parametrize(
    ("path", "remote", "status"),
    [
        ("/debug/state", "127.0.0.1", 200),
        ("/debug/state", "10.0.0.7", 403),
        ("/readyz", "10.0.0.7", 200),
        ("/metrics", "10.0.0.7", 200),
    ],
)
def test_a_pod_elsewhere_gets_probes_and_no_state(path: str, remote: str, status: int) -> None:
    app = make_app(
        registry=CollectorRegistry(),
        health=lambda: Health(ready=True, reason=""),
        state=lambda: {"pod": "secret"},
    )

    async def ask() -> Any:
        request = make_mocked_request("GET", path).clone(remote=remote)
        match = await app.router.resolve(request)
        return await match.handler(request)

    answer = asyncio.run(ask())
    assert answer.status == status
    assert ("secret" in answer.text) == (path == "/debug/state" and status == 200)
