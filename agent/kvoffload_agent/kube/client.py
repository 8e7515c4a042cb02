"""Requests to one API server, and the watch of one object."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from kvoffload_agent.kube.access import Access, AccessError

Json = Any

CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 30.0
# Bookmarks come about once a minute; a stream silent for longer is a half-open connection
# (``operator.md`` section 2.3).
SILENCE_SECONDS: Final = 80.0
APPLY: Final = "application/apply-patch+yaml"
HTTP_OK: Final = 200
HTTP_ERRORS: Final = 400
HTTP_NOT_FOUND: Final = 404
HTTP_GONE: Final = 410


class KubeError(Exception):
    """The API server refused or did not answer. ``status`` is 0 for no answer.

    ``not_asked``: it was never asked, for want of credentials that can be read.
    """

    def __init__(self, message: str, *, status: int = 0, not_asked: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.not_asked = not_asked

    @property
    def not_found(self) -> bool:
        """Whether there is no such object or kind."""
        return self.status == HTTP_NOT_FOUND

    @property
    def gone(self) -> bool:
        """Whether the version of a watch is too old."""
        return self.status == HTTP_GONE


class KubeClient:
    """An async context manager that owns its connections."""

    def __init__(self, access: Access, *, user_agent: str) -> None:
        self._access = access
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the pool; connections are made when they are needed."""
        self._session = aiohttp.ClientSession(
            # One watch, one status write, some TokenReviews at a time.
            connector=aiohttp.TCPConnector(limit=8),
            headers={"User-Agent": self._user_agent},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send one request and return the decoded answer.

        Raises:
            KubeError: it was refused, or there was no answer in time.
        """
        assert self._session is not None
        try:
            async with self._session.request(
                method,
                self._access.server + path,
                params=params,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type, **self._authorization()},
                ssl=self._access.tls or False,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, connect=CONNECT_SECONDS),
            ) as response:
                raw = await response.read()
                if response.status >= HTTP_ERRORS:
                    raise KubeError(_message(raw), status=response.status)
                return json.loads(raw)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise KubeError(f"no answer: {type(error).__name__} {error}") from error

    @property
    def server(self) -> str:
        """The API server's base URL."""
        return self._access.server

    async def watch(
        self,
        path: str,
        *,
        params: Mapping[str, str],
        timeout_seconds: int,
        opened: Callable[[], None],
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield (type, object) of each event until the server ends the stream.

        ``opened`` is called once the server has accepted the watch, which may be long before the
        first event.

        Raises:
            KubeError: as ``request``; an ERROR event with its code.
        """
        assert self._session is not None
        query = {
            **params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        )
        try:
            async with self._session.get(
                self._access.server + path,
                params=query,
                headers=self._authorization(),
                ssl=self._access.tls or False,
                timeout=timeout,
            ) as response:
                if response.status != HTTP_OK:
                    raise KubeError(_message(await response.read()), status=response.status)
                opened()
                async for line in _lines(response.content):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(f"the watch broke: {type(error).__name__} {error}") from error

    def _authorization(self) -> Mapping[str, str]:
        try:
            token = self._access.token()
        except AccessError as error:
            raise KubeError(str(error), not_asked=True) from error
        return {"Authorization": f"Bearer {token}"} if token else {}


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length: aiohttp's own reader fails above 128 KiB."""
    rest = b""
    async for data in stream.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line:
                yield line


def _event(line: bytes) -> tuple[str, Json]:
    try:
        event = json.loads(line)
        kind, item = str(event["type"]), event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise KubeError(f"the watch sent a broken line of {len(line)} bytes") from error
    if kind == "ERROR":
        raise KubeError(str(item.get("message", "")), status=int(item.get("code") or HTTP_GONE))
    return kind, item


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")
