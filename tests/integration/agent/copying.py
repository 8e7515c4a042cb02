"""An engine as processes of its own: a scheduler, and workers that are always in mid-copy."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.processes import die_with_parent
from tests.integration.agent.wire import TOKENS_PER_BLOCK, Closed, Peer, int64

from kvoffload_api.wire.messages import (
    Alloc,
    AllocReply,
    Complete,
    Map,
    Mapped,
    Match,
    MatchReply,
    Plan,
)

RANKS = 2
BLOCKS = 16
BLOCK_BYTES = 256 << 10
IDENTITY = b"a model on two ranks"
# A fork of a process that has imported everything is there in milliseconds, and has no threads.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
ANSWER_SECONDS = 20.0


def peer(socket: Path) -> Peer:
    return Peer(socket, identity=IDENTITY, block_bytes=BLOCK_BYTES)


class EngineProcesses:
    """Three processes; each can be killed alone. ``kind`` of a plan: ``load`` or ``store``."""

    def __init__(self, socket: Path, *, key: str) -> None:
        self.processes: dict[str, Any] = {}
        self._pipes: dict[str, Connection] = {}
        self._start("scheduler", run_scheduler, socket, key)
        self.session: int = self._receive("scheduler")
        for rank in range(RANKS):
            self._start(f"worker {rank}", run_worker, socket, key, rank)

    def _start(self, name: str, function: Any, *arguments: object) -> None:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        self.processes[name], self._pipes[name] = process, ours

    def _receive(self, name: str) -> Any:
        assert self._pipes[name].poll(ANSWER_SECONDS), f"no answer of the {name}"
        return self._pipes[name].recv()

    def plan(self, kind: str, seed: bytes) -> Plan:
        """Have a job planned: a store of new chunks, or a load of chunks stored just before."""
        self._pipes["scheduler"].send(("store", seed))
        plan: Plan
        plan, stored = self._receive("scheduler")
        if kind == "load":
            for rank in range(RANKS):
                self._pipes[f"worker {rank}"].send(("complete", plan))
            self._pipes["scheduler"].send(("load", stored))
            plan, _ = self._receive("scheduler")
        return plan

    def copy(self, kind: str, plan: Plan) -> None:
        """Return when every worker has begun a copy that will not end."""
        for rank in range(RANKS):
            self._pipes[f"worker {rank}"].send((kind, plan))
        for rank in range(RANKS):
            assert self._receive(f"worker {rank}") == "copying"

    def kill(self, *names: str) -> None:
        """SIGKILL these processes, and wait until they are gone."""
        for name in names:
            os.kill(self.processes[name].pid, signal.SIGKILL)
        for name in names:
            self.processes[name].join(ANSWER_SECONDS)
            assert self.processes[name].exitcode == -signal.SIGKILL

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join(ANSWER_SECONDS)
        for pipe in self._pipes.values():
            pipe.close()


def run_scheduler(pipe: Connection, socket: Path, key: str) -> None:
    die_with_parent()
    scheduler = peer(socket)
    scheduler.open(key=key, world_size=RANKS)
    pipe.send(scheduler.session)
    handles = itertools.count(1)
    while True:
        kind, seed = pipe.recv()
        if kind == "store":
            pipe.send(store(scheduler, handles, seed))
        else:
            pipe.send((load(scheduler, next(handles), seed), seed))


def store(scheduler: Peer, handles: Iterator[int], seed: bytes) -> tuple[Plan, bytes]:
    """Offer new chunks until they get a plan, which they do once the workers have mapped all."""
    while True:
        handle = next(handles)
        seed += handle.to_bytes(4, "big")
        plan = scheduler.store(handle=handle, blocks=BLOCKS, seed=seed)
        if plan is not None:
            return plan, seed
        time.sleep(0.01)


def load(scheduler: Peer, handle: int, seed: bytes) -> Plan:
    """Ask until the store is readable, and take the whole of it."""
    scheduler.announce(handle=handle, blocks=BLOCKS, seed=seed, more=1)
    wanted = BLOCKS * TOKENS_PER_BLOCK
    tokens = None
    while tokens != wanted:
        time.sleep(0.01)
        tokens = scheduler.ask(Match(seq=handle, handle=handle, computed=0), MatchReply).tokens
    table = int64(*range(1, BLOCKS + 2))
    question = Alloc(seq=handle, handle=handle, external_tokens=wanted, blocks=[table])
    plan = scheduler.ask(question, AllocReply).load
    assert plan is not None
    return plan


def run_worker(pipe: Connection, socket: Path, key: str, rank: int) -> None:
    die_with_parent()
    worker = peer(socket)
    worker.join(key=key, rank=rank)
    memory: dict[int, mmap.mmap] = {}
    while True:
        readable, _, _ = select.select([worker.sock, pipe], [], [])
        if worker.sock in readable:
            with contextlib.suppress(Closed):
                take(worker, memory)
                continue
            signal.pause()
        kind, plan = pipe.recv()
        if kind == "complete":
            worker.send(Complete(done=[plan.job], failed=[]))
        else:
            copy_for_ever(kind, plan, memory, rank, pipe)


def take(worker: Peer, memory: dict[int, mmap.mmap]) -> None:
    """Map what the agent hands out."""
    message = worker.receive()
    if isinstance(message, Map):
        for info, fd in zip(message.segments, worker.fds, strict=True):
            memory[info.segment] = mmap.mmap(fd, info.bytes)
            os.close(fd)
        worker.fds = []
        worker.send(Mapped(segments=[info.segment for info in message.segments]))


def places(plan: Plan) -> set[tuple[int, int]]:
    """Return (segment of rank 0, byte offset) of each of a plan's copies."""
    segments = np.frombuffer(plan.segments, dtype="<u8").tolist()
    offsets = np.frombuffer(plan.offsets, dtype="<u8").tolist()
    return set(zip(segments, offsets, strict=True))


def copy_for_ever(
    kind: str, plan: Plan, memory: dict[int, mmap.mmap], rank: int, pipe: Connection
) -> None:
    """Copy a plan's bytes again and again; whoever looks, looks at a copy in flight."""
    block = bytes([rank + 1]) * BLOCK_BYTES
    told = False
    while True:
        for segment, offset in places(plan):
            where = slice(offset, offset + BLOCK_BYTES)
            if kind == "store":
                memory[segment + rank][where] = block
            else:
                block = memory[segment + rank][where]
            if not told:
                pipe.send("copying")
                told = True
