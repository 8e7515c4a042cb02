"""A rank for which the agent copies: it is never sent a segment, and asks for each job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kvoffload_agent.copying.copier import Copier
from kvoffload_agent.copying.tensors import SharedTensors, ShareError
from kvoffload_agent.memory.segment import Segment
from kvoffload_agent.server.connection import Connection
from kvoffload_agent.server.descriptors import close_all
from kvoffload_agent.server.jobs import JobTable
from kvoffload_agent.server.worker import Worker
from kvoffload_api.wire.copying import Copied, CopyFailed, Share, Shared, Start, Stop
from kvoffload_api.wire.framing import FramingError
from kvoffload_api.wire.messages import Complete, FromEngine, Mapped, Unmapped

if TYPE_CHECKING:
    from kvoffload_agent.server.session import Session


class Report(Protocol):
    """Where a worker's reports go, as if the engine had sent them."""

    def __call__(self, worker: Worker, message: Complete | Mapped | Unmapped) -> None:
        """Take one report."""


Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]


class DelegatedWorker(Worker):
    """Reports to its session what the agent's own copies do.

    Args:
        rank: of the engine.
        connection: the worker's, for the client's side of the session.
        late: as for every worker.
        tensors: its KV memory, owned from now on.
        jobs: of the session.
        report: takes what an engine that copies by itself would have sent.
        spawn: starts a task that the agent owns.
    """

    def __init__(
        self,
        *,
        rank: int,
        connection: Connection,
        late: Callable[[Worker, list[int]], None],
        tensors: SharedTensors,
        jobs: JobTable,
        report: Report,
        spawn: Spawn,
    ) -> None:
        super().__init__(rank=rank, connection=connection, late=late)
        self._jobs = jobs
        self._report = report
        self._spawn = spawn
        self._left = False
        self._copier = Copier(
            rank=rank, tensors=tensors, ended=self._ended, unmapped=self._gave_back
        )

    def start(self, message: Start) -> None:
        """Begin with jobs that this rank owes; of others nothing is known, and it is told so."""
        unknown = []
        for job in message.jobs:
            begun = self._jobs.begin(job, rank=self.rank)
            if begun is None or self._left:
                unknown.append(CopyFailed(job=job, reason="the agent has no such job to begin"))
            else:
                self._copier.start(*begun)
        if unknown:
            self.connection.send(Copied(done=[], failed=unknown))

    def stop(self, message: Stop) -> None:
        """Let jobs end soon."""
        self._copier.stop(message.jobs, "the engine asked for it")

    def close(self) -> None:
        """Close the connection once no copy touches the engine's memory any more."""
        self._left = True
        self._copier.close(self.connection.close)

    def leave(self, left: Callable[[], None]) -> None:
        """Call ``left`` once no copy touches the partition's memory any more."""
        self._left = True
        self._copier.close(left)

    def halt(self) -> None:
        """Let no copy outlive the connection, at the end of the agent."""
        self._left = True
        self._copier.halt()

    def _hand_out(self, segment: Segment) -> None:
        self._spawn(self._map(segment))

    async def _map(self, segment: Segment) -> None:
        if await self._copier.map(segment) and not self._left:
            self._report(self, Mapped(segments=[segment.id]))

    def _ask_back(self, segment: Segment) -> None:
        # Not at once: the caller is in the middle of counting who still holds what.
        asyncio.get_running_loop().call_soon(self._copier.unmap, [segment.id])

    def _gave_back(self, numbers: list[int]) -> None:
        if not self._left:
            self._report(self, Unmapped(segments=numbers))

    def _ended(self, job: int, reason: str) -> None:
        if self._left:
            return
        failed = [CopyFailed(job=job, reason=reason)] if reason else []
        self.connection.send(Copied(done=[] if reason else [job], failed=failed))
        self._report(self, Complete(done=[] if reason else [job], failed=[job] if reason else []))


async def take_share(
    session: Session,
    connection: Connection,
    *,
    rank: int,
    late: Callable[[Worker, list[int]], None],
    spawn: Spawn,
    joined: Callable[[Worker], None],
    refused: Callable[[str, str], None],
) -> None:
    """Let a rank join once its KV memory is here; its further messages wait meanwhile.

    ``refused`` is called with a code and a text if it cannot join.
    """
    connection.pause()
    try:
        message, fds = await connection.receive_with_descriptors()
        share = _checked(message, fds)
    except (FramingError, TimeoutError) as error:
        refused("protocol", str(error) or "the KV memory was not shared in time")
        return
    registration = session.registration
    if connection.closing or session.ending or registration is None:
        close_all(fds)
        connection.close()
        return
    if rank in session.workers:
        close_all(fds)
        refused("busy", f"rank {rank} is connected already")
        return
    try:
        tensors = SharedTensors(share, fds, block_bytes=registration.shape.block_bytes)
    except ShareError as error:
        refused("layout", f"KV memory of rank {rank}: {error}")
        return
    worker = DelegatedWorker(
        rank=rank,
        connection=connection,
        late=late,
        tensors=tensors,
        jobs=registration.jobs,
        report=session.worker_message,
        spawn=spawn,
    )
    connection.send(Shared())
    joined(worker)
    connection.resume()


def _checked(message: FromEngine, fds: Sequence[int]) -> Share:
    """Return the message as what it must be; otherwise close its descriptors.

    Raises:
        FramingError: it is no share, or its files did not all come.
    """
    if isinstance(message, Share) and message.files == len(fds):
        return message
    close_all(fds)
    raise FramingError("a worker for which the agent copies begins with its KV memory (Share)")
