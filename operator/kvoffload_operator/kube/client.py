"""A small client of the API server over aiohttp.

Two pools of connections: requests share few, so that a burst cannot open thousands;
each watch holds one of its own for minutes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from kvoffload_operator.kube.access import Access
from kvoffload_operator.kube.answers import Json, accept_header, decode, event, unreachable
from kvoffload_operator.kube.errors import ThrottledError
from kvoffload_operator.kube.lines import LineSplitter
from kvoffload_operator.kube.resources import Resource

FIELD_MANAGER: Final = "kvoffload-operator"
# client-go's default page; keeps one answer of 12 KB objects below 6 MB.
PAGE_SIZE: Final = 500
# Workers are 8 and informers are 5: more would only queue in the server.
_CONNECTIONS: Final = 16
_CONNECT_S: Final = 10.0
_REQUEST_S: Final = 30.0
# Bookmarks come about once a minute; silence for longer is a half-open connection.
_WATCH_SILENCE_S: Final = 80.0
# A throttled request is tried this often before the work queue's back-off takes over.
_THROTTLED_TRIES: Final = 4
_RETRY_AFTER_MAX_S: Final = 10.0

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

Observe = Callable[[str, int], None]


class KubeClient:
    """Requests to one API server; an async context manager that owns its connections.

    Args:
        access: Where the server is and who we are.
        user_agent: Name in the server's audit log.
        observe: Called with the method and the HTTP status (0 for no answer) of each request.
    """

    def __init__(
        self, access: Access, *, user_agent: str, observe: Observe = lambda _method, _code: None
    ) -> None:
        self._access = access
        self._agent = user_agent
        self._observe = observe
        self._requests: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the pools; connections are made when they are needed."""
        self._requests = self._session(limit=_CONNECTIONS)
        self._watches = self._session(limit=0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        for session in (self._requests, self._watches):
            if session is not None:
                await session.close()

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> Json:
        """Return one object.

        Raises:
            NotFoundError: There is none of that name.
            KubeError: As ``request``.
        """
        return await self.request("GET", resource.path(namespace=namespace, name=name))

    async def list_pages(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        resource_version: str = "",
    ) -> AsyncIterator[Json]:
        """Yield the pages of a collection; the last page's version is that of the whole list.

        Args:
            resource: Which collection.
            namespace: Empty for all namespaces.
            selectors: ``labelSelector`` and ``fieldSelector``.
            metadata_only: Ask for ``PartialObjectMetadata``.
            resource_version: Of the first page; ``"0"`` takes what the server's cache has.

        Raises:
            GoneError: The list took so long that its version expired.
            KubeError: As ``request``.
        """
        accept = accept_header("PartialObjectMetadataList") if metadata_only else accept_header()
        params = {**(selectors or {}), "limit": str(PAGE_SIZE)}
        if resource_version:
            params["resourceVersion"] = resource_version
        while True:
            page = await self.request(
                "GET", resource.path(namespace=namespace), params=params, accept=accept
            )
            yield page
            token = page["metadata"].get("continue")
            if not token:
                return
            params = {**(selectors or {}), "limit": str(PAGE_SIZE), "continue": token}

    async def create(self, resource: Resource, body: Json, *, namespace: str = "") -> Json:
        """Create an object and return it.

        Raises:
            ConflictError: There is one of that name.
            KubeError: As ``request``.
        """
        return await self.request("POST", resource.path(namespace=namespace), body=body)

    async def replace(
        self, resource: Resource, body: Json, *, name: str, namespace: str = ""
    ) -> Json:
        """Replace an object that still has the body's ``resourceVersion``; return the new one.

        Raises:
            ConflictError: Somebody wrote in between.
            KubeError: As ``request``.
        """
        path = resource.path(namespace=namespace, name=name)
        return await self.request("PUT", path, body=body)

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> Json:
        """Apply fields on the server as field manager ``kvoffload-operator``, taking them by force.

        Args:
            resource: Which collection.
            body: Every field that is ours, without ``apiVersion`` and ``kind``.
            name: Name of the object.
            namespace: Namespace of the object.
            subresource: ``status`` for the status.

        Raises:
            KubeError: As ``request``.
        """
        return await self.request(
            "PATCH",
            resource.path(namespace=namespace, name=name, subresource=subresource),
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            body={"apiVersion": resource.api_version, "kind": resource.kind, **body},
            content_type=APPLY_PATCH,
        )

    async def delete(
        self, resource: Resource, *, name: str, namespace: str = "", uid: str = ""
    ) -> None:
        """Delete an object, and only the very one with that uid if one is given.

        Raises:
            KubeError: As ``request``; ``ConflictError`` if another object has the name now.
        """
        body = {"preconditions": {"uid": uid}} if uid else None
        await self.request("DELETE", resource.path(namespace=namespace, name=name), body=body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout_s: float = _REQUEST_S,
    ) -> Json:
        """Send one request and return the decoded answer; a throttled one waits and tries again.

        Raises:
            ClusterError: No answer in time, or the server is overloaded or restarting.
            AccessError: The server refused our credentials or rights.
            RequestError: The server refused the content.
        """
        assert self._requests is not None
        data = None if body is None else json.dumps(body, separators=(",", ":"))
        for last in (False,) * (_THROTTLED_TRIES - 1) + (True,):
            headers = {"Accept": accept, "Content-Type": content_type, **self._authorization()}
            try:
                async with self._requests.request(
                    method,
                    self._access.server + path,
                    params=params,
                    data=data,
                    headers=headers,
                    ssl=self._access.tls or False,
                    timeout=aiohttp.ClientTimeout(total=timeout_s, connect=_CONNECT_S),
                ) as response:
                    self._observe(method, response.status)
                    return await self._answer(response)
            except ThrottledError as error:
                if last:
                    raise
                await asyncio.sleep(min(error.retry_after, _RETRY_AFTER_MAX_S))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._observe(method, 0)
                raise unreachable(error) from error
        raise AssertionError("the last try returns or raises")

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        resource_version: str,
        timeout_s: int,
        silence_s: float = _WATCH_SILENCE_S,
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield ``(type, object)`` of each event until the server ends the stream.

        Args:
            resource: Which collection.
            namespace: Empty for all namespaces.
            selectors: ``labelSelector`` and ``fieldSelector``.
            metadata_only: Ask for ``PartialObjectMetadata``.
            resource_version: Events after this version.
            timeout_s: When the server shall end the stream.
            silence_s: A stream silent for longer is given up.

        Raises:
            GoneError: The version is too old, or the server sent any other ERROR: list again.
            KubeError: As ``request``.
        """
        assert self._watches is not None
        params = {
            **(selectors or {}),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        accept = accept_header("PartialObjectMetadata") if metadata_only else accept_header()
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=silence_s)
        try:
            async with self._watches.get(
                self._access.server + resource.path(namespace=namespace),
                params=params,
                headers={"Accept": accept, **self._authorization()},
                ssl=self._access.tls or False,
                timeout=timeout,
            ) as response:
                self._observe("WATCH", response.status)
                if response.status != 200:  # noqa: PLR2004 - HTTP OK
                    await self._answer(response)
                splitter = LineSplitter()
                async for data in response.content.iter_any():
                    for line in splitter.feed(data):
                        yield event(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observe("WATCH", 0)
            raise unreachable(error) from error

    def _session(self, *, limit: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit),
            headers={"User-Agent": self._agent},
            # A proxy in the environment is for the world, not for the cluster's own API.
            trust_env=False,
        )

    def _authorization(self) -> Mapping[str, str]:
        token = self._access.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _answer(self, response: aiohttp.ClientResponse) -> Json:
        raw = await response.read()
        if response.status == 401:  # noqa: PLR2004 - HTTP Unauthorized
            self._access.token.forget()
        return decode(raw, status=response.status, retry_after=response.headers.get("Retry-After"))
