"""Round trips on a Unix socket, alone and beside a thread that copies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvoffload_client.carrier import HOST_SLICE_BYTES
from kvoffload_client.copy import BlockCopy

ROUNDS = 4000
MESSAGE = b"x" * 64
TIMEOUT_SECONDS = 30.0

Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds."""

    p50: float
    p99: float


def roundtrips(
    copy: BlockCopy, *, src: Addresses, dst: Addresses, lengths: Addresses
) -> tuple[Latency, Latency]:
    """Return the latency (idle, while a thread of this process copies all the time)."""
    with _echo() as peer:
        _measure(peer)  # warms both processes up
        idle = _measure(peer)
        with _copying(copy, src, dst, lengths):
            busy = _measure(peer)
    return idle, busy


def _measure(peer: socket.socket) -> Latency:
    seconds = np.empty(ROUNDS)
    for number in range(ROUNDS):
        began = time.perf_counter()
        peer.sendall(MESSAGE)
        peer.recv(len(MESSAGE), socket.MSG_WAITALL)
        seconds[number] = time.perf_counter() - began
    return Latency(p50=float(np.percentile(seconds, 50)), p99=float(np.percentile(seconds, 99)))


@contextlib.contextmanager
def _echo() -> Iterator[socket.socket]:
    """Start a process that echoes; yields a socket to it."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        while message := theirs.recv(len(MESSAGE), socket.MSG_WAITALL):
            theirs.sendall(message)
        os._exit(0)
    theirs.close()
    ours.settimeout(TIMEOUT_SECONDS)
    try:
        yield ours
    finally:
        ours.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextlib.contextmanager
def _copying(copy: BlockCopy, src: Addresses, dst: Addresses, lengths: Addresses) -> Iterator[None]:
    stop = threading.Event()
    step = max(1, HOST_SLICE_BYTES // int(lengths[0]))

    def run() -> None:
        while not stop.is_set():
            for at in range(0, len(src), step):
                copy(src[at : at + step], dst[at : at + step], lengths[at : at + step])

    thread = threading.Thread(target=run, name="copies", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(TIMEOUT_SECONDS)
