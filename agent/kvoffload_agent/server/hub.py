"""All connections and sessions of the agent: hello, join, dispatch, leave."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from kvoffload_agent.partitions.manager import GeometryError, PartitionManager
from kvoffload_agent.partitions.partition import Geometry, PartitionKey
from kvoffload_agent.partitions.space import row_bytes
from kvoffload_agent.server.connection import Connection
from kvoffload_agent.server.decisions import Decisions
from kvoffload_agent.server.engine import MakeEngine, Policies
from kvoffload_agent.server.identity import Identifier, Identity, IdentityError
from kvoffload_agent.server.jobs import JobTable
from kvoffload_agent.server.listener import Peer
from kvoffload_agent.server.session import Registration, Session
from kvoffload_agent.server.stats import Metrics, SessionStats
from kvoffload_agent.server.translate import WireError, shape_of
from kvoffload_agent.server.worker import Worker
from kvoffload_api.wire.messages import (
    PROTOCOL_VERSION,
    Complete,
    FromEngine,
    Hello,
    Mapped,
    Refused,
    Register,
    Registered,
    Unmapped,
    Welcome,
)

# A peer that connects and says nothing holds a descriptor.
HELLO_SECONDS: Final = 10.0
# Engines start their workers first and load a model meanwhile; an hour-long start is the peer's.
PARKED_SECONDS: Final = 3600.0
MAX_PARKED: Final = 1024
MAX_CONNECTIONS: Final = 4096
MAX_KEY_LENGTH: Final = 256

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Parked:
    """A worker whose scheduler has not registered yet."""

    connection: Connection
    identity: Identity
    hello: Hello
    timer: asyncio.TimerHandle


class Hub:
    """Owns sessions. ``spawn`` starts a task in the agent's task group."""

    def __init__(
        self,
        *,
        boot_id: int,
        version: str,
        identifier: Identifier,
        policies: Policies,
        manager: PartitionManager,
        make_engine: MakeEngine,
        metrics: Metrics,
        spawn: Callable[[asyncio.Future[None] | object], object],
    ) -> None:
        self._boot_id = boot_id
        self._version = version
        self._identifier = identifier
        self._policies = policies
        self._manager = manager
        self._make_engine = make_engine
        self._metrics = metrics
        self._spawn = spawn
        self._decisions = Decisions(manager=manager)
        self._connections: dict[Connection, asyncio.TimerHandle | None] = {}
        self._peers: dict[Connection, Peer] = {}
        self._sessions: dict[str, Session] = {}
        self._schedulers: dict[Connection, Session] = {}
        self._workers: dict[Connection, tuple[Session, Worker]] = {}
        self._parked: dict[Connection, Parked] = {}
        self._next_session = 1

    @property
    def sessions(self) -> list[Session]:
        """All sessions, also those whose workers have not left yet."""
        return list(self._sessions.values())

    # --- connections -----------------------------------------------------------------------

    def accept(self, sock: socket.socket, peer: Peer) -> Connection:
        """Return the protocol of a new connection, which has some seconds to say hello."""
        connection = Connection(
            sock=sock, boot_id=self._boot_id, on_message=self.message, on_closed=self.closed
        )
        connection.name = f"pid {peer.pid}"
        self._peers[connection] = peer
        timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._silent, connection)
        self._connections[connection] = timer
        if len(self._connections) > MAX_CONNECTIONS:
            asyncio.get_running_loop().call_soon(
                self._refuse, connection, "busy", f"over {MAX_CONNECTIONS} connections"
            )
        return connection

    def closed(self, connection: Connection) -> None:
        """Handle the end of a connection, whoever caused it."""
        timer = self._connections.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._peers.pop(connection, None)
        if (parked := self._parked.pop(connection, None)) is not None:
            parked.timer.cancel()
        if (session := self._schedulers.pop(connection, None)) is not None:
            session.end("its scheduler disconnected")
        if (joined := self._workers.pop(connection, None)) is not None:
            session, worker = joined
            session.worker_left(worker)

    def close_all(self) -> None:
        """Close every connection, at the end of the agent."""
        for connection in list(self._connections):
            connection.close()

    def message(self, connection: Connection, message: FromEngine) -> None:
        """Handle one message, in the order of its connection."""
        if (session := self._schedulers.get(connection)) is not None:
            if isinstance(message, Register):
                self._register(session, message)
            else:
                self._decisions.handle(session, message)
        elif (joined := self._workers.get(connection)) is not None:
            session, worker = joined
            if isinstance(message, Complete | Mapped | Unmapped):
                self._worker_message(session, worker, message)
            else:
                self._refuse(connection, "protocol", f"a worker sent {type(message).__name__}")
        elif isinstance(message, Hello) and not connection.trusted:
            connection.pause()
            self._spawn(self._hello(connection, message))
        else:
            self._refuse(connection, "protocol", "the first message must be one Hello")

    # --- hello -----------------------------------------------------------------------------

    async def _hello(self, connection: Connection, hello: Hello) -> None:
        """Identify a peer; its further messages wait meanwhile."""
        if hello.protocol != PROTOCOL_VERSION:
            self._refuse(
                connection,
                "protocol",
                f"protocol {hello.protocol} is not {PROTOCOL_VERSION}: the client's version must"
                f" match agent {self._version}",
            )
            return
        if not 0 < len(hello.session_key) <= MAX_KEY_LENGTH:
            self._refuse(connection, "protocol", "session_key must have 1 to 256 characters")
            return
        peer = self._peers.get(connection)
        if peer is None:
            return
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                identity = await self._identifier.identify(token=hello.token, peer=peer)
        except (IdentityError, TimeoutError) as error:
            self._refuse(connection, "identity", str(error) or "the token review took too long")
            return
        if connection.closing:
            return
        self._trust(connection, identity, hello)
        if hello.role == "scheduler":
            self._hello_scheduler(connection, identity, hello)
        elif hello.role == "worker":
            self._hello_worker(connection, identity, hello)
        else:
            self._refuse(connection, "protocol", f"role {hello.role!r} is unknown")
        connection.resume()

    def _trust(self, connection: Connection, identity: Identity, hello: Hello) -> None:
        timer = self._connections.get(connection)
        if timer is not None:
            timer.cancel()
            self._connections[connection] = None
        connection.trusted = True
        rank = f" rank {hello.rank}" if hello.role == "worker" else ""
        connection.name = f"{identity.namespace}/{identity.pod} {hello.role}{rank}"

    def _hello_scheduler(self, connection: Connection, identity: Identity, hello: Hello) -> None:
        existing = self._sessions.get(hello.session_key)
        if existing is not None:
            if existing.identity != identity:
                self._refuse(connection, "identity", "this session key is another engine's")
            else:
                self._refuse(
                    connection,
                    "busy",
                    "a session of this key exists: its workers must disconnect first",
                )
            return
        session = Session(
            number=self._next_session,
            key=hello.session_key,
            identity=identity,
            scheduler=connection,
            policies=self._policies,
            manager=self._manager,
            stats=SessionStats(namespace=identity.namespace, metrics=self._metrics),
            released=self._released,
        )
        self._next_session += 1
        self._sessions[hello.session_key] = session
        self._schedulers[connection] = session
        session.follow_policy()
        connection.send(
            Welcome(
                agent_version=self._version,
                namespace=identity.namespace,
                pod=identity.pod,
                session=session.number,
            )
        )

    def _hello_worker(self, connection: Connection, identity: Identity, hello: Hello) -> None:
        session = self._sessions.get(hello.session_key)
        if session is not None and session.identity != identity:
            self._refuse(connection, "identity", "this session key is another engine's")
        elif session is not None and session.registration is not None and not session.ending:
            self._join(session, connection, hello)
        elif len(self._parked) >= MAX_PARKED:
            self._refuse(connection, "busy", "too many workers wait for their schedulers")
        else:
            timer = asyncio.get_running_loop().call_later(
                PARKED_SECONDS,
                self._refuse,
                connection,
                "busy",
                "its scheduler did not register within an hour",
            )
            self._parked[connection] = Parked(
                connection=connection, identity=identity, hello=hello, timer=timer
            )

    def _join(self, session: Session, connection: Connection, hello: Hello) -> None:
        assert session.registration is not None
        ranks = session.registration.shape.ranks
        if not 0 <= hello.rank < ranks:
            self._refuse(
                connection, "protocol", f"rank {hello.rank} is not within 0 and {ranks - 1}"
            )
            return
        if hello.rank in session.workers:
            self._refuse(connection, "busy", f"rank {hello.rank} is connected already")
            return
        worker = Worker(
            rank=hello.rank,
            connection=connection,
            late=lambda worker, segments: self._late(session, worker, segments),
        )
        self._workers[connection] = (session, worker)
        connection.send(
            Welcome(
                agent_version=self._version,
                namespace=session.identity.namespace,
                pod=session.identity.pod,
                session=session.number,
            )
        )
        session.join(worker)

    # --- sessions --------------------------------------------------------------------------

    def _register(self, session: Session, message: Register) -> None:
        try:
            self._check_new(session, message)
            shape = shape_of(message)
            session.follow_policy()
            geometry = Geometry(
                row_bytes=row_bytes(
                    blocks_per_chunk=message.blocks_per_chunk,
                    block_bytes=list(shape.block_bytes),
                ),
                ranks=shape.ranks,
            )
            key = PartitionKey(
                namespace=session.identity.namespace, fingerprint=message.fingerprint
            )
            partition = self._manager.attach(session, key=key, geometry=geometry)
            try:
                engine = self._make_engine(shape.scheduler, partition.pool)
            except ValueError:
                self._manager.detach(session, partition)
                raise
        except (WireError, GeometryError, ValueError) as error:
            self._metrics.refused.labels("layout").inc()
            _log.warning("registration refused", session=session.number, error=str(error))
            session.scheduler.send(Refused(seq=message.seq, code="layout", message=str(error)))
            return
        session.registration = Registration(
            fingerprint=message.fingerprint,
            shape=shape,
            partition=partition,
            engine=engine,
            jobs=JobTable(ranks=shape.ranks),
        )
        _log.info(
            "engine registered",
            session=session.number,
            namespace=session.identity.namespace,
            pod=session.identity.pod,
            partition=str(key),
            ranks=shape.ranks,
            row_bytes=geometry.row_bytes,
        )
        session.scheduler.send(
            Registered(
                seq=message.seq,
                partition=str(key),
                slot_bytes=geometry.row_bytes,
                session=session.number,
            )
        )
        for parked in list(self._parked.values()):
            if parked.hello.session_key == session.key:
                self._unpark(session, parked)

    def _check_new(self, session: Session, message: Register) -> None:
        if session.registration is not None:
            raise WireError("the engine is registered already")
        if hashlib.sha256(message.identity).hexdigest() != message.fingerprint:
            raise WireError("fingerprint is not the sha256 of identity")

    def _unpark(self, session: Session, parked: Parked) -> None:
        del self._parked[parked.connection]
        parked.timer.cancel()
        if parked.identity != session.identity:
            self._refuse(parked.connection, "identity", "this session key is another engine's")
        else:
            self._join(session, parked.connection, parked.hello)

    def _worker_message(
        self, session: Session, worker: Worker, message: Complete | Mapped | Unmapped
    ) -> None:
        try:
            session.worker_message(worker, message)
        except Exception:  # noqa: BLE001 - one engine's fault must not end the others
            _log.exception("a worker's report failed", session=session.number)
            session.refuse_and_end("internal", "the agent failed on a report, reconnect")

    def _late(self, session: Session, worker: Worker, segments: list[int]) -> None:
        self._metrics.disconnected.labels("map deadline").inc()
        session.refuse_and_end(
            "protocol", f"rank {worker.rank} did not map segments {segments} in time"
        )

    def _released(self, session: Session) -> None:
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]

    # --- refusals --------------------------------------------------------------------------

    def _silent(self, connection: Connection) -> None:
        self._refuse(connection, "protocol", "no hello in time")

    def _refuse(self, connection: Connection, code: str, message: str) -> None:
        if connection.closing:
            return
        self._metrics.refused.labels(code).inc()
        _log.warning("connection refused", peer=connection.name, code=code, reason=message)
        connection.send(Refused(seq=-1, code=code, message=message))
        connection.close()
