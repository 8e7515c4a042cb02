"""However the API server ends a watch, the agent asks again at a bounded rate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import cast

import pytest
from tests.harness.virtual_time import in_virtual_time

from kvoffload_agent.config.node import NodeSource
from kvoffload_agent.kube.access import Access, AccessError
from kvoffload_agent.kube.client import Json, KubeClient, KubeError
from kvoffload_agent.kube.outage import hint_for

MINUTE_SECONDS = 60.0


class FakeServer:
    """Ends every watch that it accepted at once, which a real API server is not brought to do."""

    server = "https://192.0.2.1:6443"

    def __init__(self) -> None:
        self.watches = 0

    async def request(self, _method: str, _path: str, **_options: object) -> Json:
        return {"metadata": {"resourceVersion": "7"}, "items": []}

    async def watch(
        self,
        _path: str,
        *,
        params: Mapping[str, str],
        timeout_seconds: int,
        opened: Callable[[], None],
    ) -> AsyncIterator[tuple[str, Json]]:
        assert params["resourceVersion"] == "7"
        assert timeout_seconds > 0
        self.watches += 1
        opened()
        nothing: tuple[tuple[str, Json], ...] = ()
        for event in nothing:
            yield event


def test_a_watch_that_ends_at_once_is_asked_again_at_most_four_times_a_second(
    tmp_path: Path,
) -> None:
    server = FakeServer()
    source = NodeSource(client=cast("KubeClient", server), node_name="node-a", state_dir=tmp_path)

    async def follow_for_a_minute() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MINUTE_SECONDS):
                await source.run(lambda: None)

    in_virtual_time(follow_for_a_minute())
    # A quarter of a second at the least; and it does not stop asking either.
    assert 2 <= server.watches <= MINUTE_SECONDS / 0.25


async def test_credentials_that_cannot_be_read_are_not_taken_for_a_silent_server() -> None:
    def unreadable() -> str:
        raise AccessError("the token cannot be read: Permission denied")

    access = Access(server="http://192.0.2.1", tls=None, token=unreadable)
    async with KubeClient(access, user_agent="test") as client:
        with pytest.raises(KubeError, match="Permission denied") as caught:
            await client.request("GET", "/version")
    assert caught.value.not_asked
    assert "may read its credentials" in hint_for(caught.value)
