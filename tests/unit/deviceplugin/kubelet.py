"""The kubelet's side of the device plugin API, on real sockets, with its own view of the messages.

It decodes by hand what the plugin sends, so that a wrong field number is seen.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import grpc

EMPTY = b""


def fields(data: bytes) -> list[tuple[int, bytes | int]]:
    """Decode one message of the wire format: (number, bytes or integer), in order."""
    found: list[tuple[int, bytes | int]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            assert key & 7 == 2, "only varints and lengths are used"
            size = varint()
            found.append((key >> 3, data[place : place + size]))
            place += size
    return found


def encode(number: int, content: bytes) -> bytes:
    """Encode a field of bytes shorter than 128."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def allocation(*containers: list[str]) -> bytes:
    """Return an AllocateRequest."""
    return b"".join(
        encode(1, b"".join(encode(1, name.encode()) for name in names)) for names in containers
    )


class Kubelet:
    """Listens at kubelet.sock, as kubelet does: on each start it removes all other sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: asyncio.Queue[dict[int, bytes | int]] = asyncio.Queue()
        self.refuse = False
        self._server: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()
        self._server = grpc.aio.server()
        handlers = {"Register": grpc.unary_unary_rpc_method_handler(self._register)}
        handler = grpc.method_handlers_generic_handler("v1beta1.Registration", handlers)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _register(self, request: bytes, context: Any) -> bytes:
        if self.refuse:
            await context.abort(grpc.StatusCode.UNKNOWN, "not now")
        self.registered.put_nowait(dict(fields(request)))
        return EMPTY

    async def registration(self) -> dict[int, bytes | int]:
        async with asyncio.timeout(20):
            return await self.registered.get()

    async def call(self, method: str, request: bytes = EMPTY) -> bytes:
        async with grpc.aio.insecure_channel(f"unix:{self.folder / 'kvoffload-agent.sock'}") as to:
            answer = await to.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=10)
            return bytes(answer)

    async def healths(self, count: int) -> list[dict[str, str]]:
        """Return the health of every device, as often as it is told."""
        told = []
        async with grpc.aio.insecure_channel(f"unix:{self.folder / 'kvoffload-agent.sock'}") as to:
            stream = to.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(EMPTY, timeout=20)
            async for message in stream:
                devices = [dict(fields(bytes(content))) for _, content in fields(message)]
                told.append({text(device[1]): text(device[2]) for device in devices})
                if len(told) == count:
                    break
            stream.cancel()
        return told


def text(value: bytes | int) -> str:
    assert isinstance(value, bytes)
    return value.decode()
