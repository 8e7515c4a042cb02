"""The Unix socket that engines connect to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Engines run under any uid; identity comes from a token or from SO_PEERCRED, not from the mode
# (``operator.md`` section 3.5).
DIRECTORY_MODE: Final = 0o755
SOCKET_MODE: Final = 0o666
# An engine has 1 + world size connections; 1024 wait while the loop is busy for a moment.
BACKLOG: Final = 1024
# Only tells a live agent from a stale file.
PROBE_SECONDS: Final = 1.0
_UCRED: Final = struct.Struct("3i")


class ListenError(Exception):
    """The socket cannot be made; for the person who starts the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who the kernel says is at the other end (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


def listen(path: Path) -> socket.socket:
    """Return a listening socket at ``path``, replacing the file a killed agent left.

    Raises:
        ListenError: another agent serves there, or the path cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        _refuse_foreign(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # Bound under another name and renamed: engines see the old socket or a working one.
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        listener.bind(str(fresh))
        fresh.chmod(SOCKET_MODE)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        fresh.replace(path)
    except OSError as error:
        raise ListenError(f"cannot listen at {path}: {error}") from error
    return listener


def _refuse_foreign(path: Path) -> None:
    """Leave alone what is no socket, and the socket of a living agent."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is no socket: remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            probe.connect(str(path))
            raise ListenError(f"another agent serves at {path}: stop it or choose another path")


async def accept_forever(
    listener: socket.socket,
    *,
    make: Callable[[socket.socket, Peer], asyncio.BufferedProtocol],
) -> None:
    """Accept peers until cancelled; ``make`` returns the protocol of one."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, _ = await loop.sock_accept(listener)
        except OSError:
            # Out of descriptors, or the peer left again: others are still served.
            await asyncio.sleep(0.05)
            continue
        sock.setblocking(False)
        peer = _peer_of(sock)
        protocol = make(sock, peer)
        await loop.connect_accepted_socket(lambda protocol=protocol: protocol, sock)  # type: ignore[misc]


def _peer_of(sock: socket.socket) -> Peer:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return Peer(pid=pid, uid=uid, gid=gid)


def remove(path: Path, listener: socket.socket) -> None:
    """Close the listener and remove the file if it is still this socket's."""
    with contextlib.suppress(OSError):
        path.unlink()
    listener.close()
