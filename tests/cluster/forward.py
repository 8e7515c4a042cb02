"""Stands for kube-proxy: the Service address of the API server leads to the API server.

usage: forward.py LISTEN_ADDRESS LISTEN_PORT TO_ADDRESS TO_PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK_BYTES = 65536


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def main(listen: str, port: str, to: str, to_port: str) -> None:
    """Forward until killed."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection(to, int(to_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, onward[1]), copy(onward[0], writer))

    server = await asyncio.start_server(accept, listen, int(port))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
