"""Sessions by key: schedulers open and register them, workers join or wait for them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from kvoffload_agent.partitions.manager import GeometryError, PartitionManager
from kvoffload_agent.partitions.partition import Geometry, PartitionKey
from kvoffload_agent.partitions.space import row_bytes
from kvoffload_agent.server.connection import Connection
from kvoffload_agent.server.delegated import Spawn, take_share
from kvoffload_agent.server.engine import MakeEngine, Policies
from kvoffload_agent.server.identity import Identity
from kvoffload_agent.server.jobs import JobTable
from kvoffload_agent.server.quota import MAX_CONNECTIONS, MAX_SESSIONS, Quota
from kvoffload_agent.server.refusal import refuse
from kvoffload_agent.server.session import Registration, Session
from kvoffload_agent.server.stats import Metrics, SessionStats
from kvoffload_agent.server.translate import EngineShape, WireError, shape_of
from kvoffload_agent.server.worker import Worker
from kvoffload_api.wire.messages import Hello, Refused, Register, Registered, Welcome

# Engines start their workers first and load a model meanwhile; an hour-long start is the peer's.
PARKED_SECONDS: Final = 3600.0
MAX_PARKED: Final = 1024
_FOREIGN: Final = "this session key is another engine's"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Parked:
    """A worker whose scheduler has not registered yet."""

    connection: Connection
    identity: Identity
    hello: Hello
    timer: asyncio.TimerHandle


class SessionRegistry:
    """Owns sessions and knows whose connection is whose."""

    def __init__(
        self,
        *,
        version: str,
        policies: Policies,
        manager: PartitionManager,
        make_engine: MakeEngine,
        metrics: Metrics,
        spawn: Spawn,
    ) -> None:
        self._version = version
        self._policies = policies
        self._manager = manager
        self._make_engine = make_engine
        self._metrics = metrics
        self._spawn = spawn
        self._sessions: dict[str, Session] = {}
        self._parked: dict[Connection, Parked] = {}
        self._quotas: dict[Identity, Quota] = {}
        self._owners: dict[Connection, Identity] = {}
        self._next = 1
        self.schedulers: dict[Connection, Session] = {}
        self.workers: dict[Connection, tuple[Session, Worker]] = {}

    @property
    def sessions(self) -> list[Session]:
        """All sessions, also those whose workers have not left yet."""
        return list(self._sessions.values())

    def open(self, connection: Connection, identity: Identity, hello: Hello) -> None:
        """Open a session for a scheduler; a key that is in use is refused."""
        existing = self._sessions.get(hello.session_key)
        if existing is not None and existing.identity != identity:
            refuse(connection, self._metrics, code="identity", message=_FOREIGN)
            return
        if existing is not None:
            refuse(
                connection,
                self._metrics,
                code="busy",
                message="a session of this key exists: its workers must disconnect first",
            )
            return
        quota = self._counted(connection, identity)
        if quota is None:
            return
        if quota.sessions >= MAX_SESSIONS:
            message = f"{MAX_SESSIONS} sessions of this pod exist: its engines must close some"
            refuse(connection, self._metrics, code="busy", message=message)
            return
        quota.sessions += 1
        session = Session(
            number=self._next,
            key=hello.session_key,
            identity=identity,
            scheduler=connection,
            policies=self._policies,
            manager=self._manager,
            stats=SessionStats(namespace=identity.namespace, metrics=self._metrics),
            quota=quota,
            released=self._released,
        )
        self._next += 1
        self._sessions[hello.session_key] = session
        self.schedulers[connection] = session
        session.follow_policy()
        self._welcome(connection, session)

    def enter(self, connection: Connection, identity: Identity, hello: Hello) -> None:
        """Join a worker to its session, or let it wait until its scheduler registers."""
        session = self._sessions.get(hello.session_key)
        if session is not None and session.identity != identity:
            refuse(connection, self._metrics, code="identity", message=_FOREIGN)
        elif self._counted(connection, identity) is None:
            return
        elif session is not None and session.registration is not None and not session.ending:
            self._join(session, session.registration.shape, connection, hello)
        elif len(self._parked) >= MAX_PARKED:
            refuse(
                connection,
                self._metrics,
                code="busy",
                message="too many workers wait for their schedulers",
            )
        else:
            timer = asyncio.get_running_loop().call_later(
                PARKED_SECONDS, self._parked_too_long, connection
            )
            self._parked[connection] = Parked(
                connection=connection, identity=identity, hello=hello, timer=timer
            )

    def register(self, session: Session, message: Register) -> None:
        """Give an engine its partition and scheduler, and let waiting workers in."""
        try:
            registration = self._registration(session, message)
        except (WireError, GeometryError, ValueError) as error:
            self._metrics.refused.labels("layout").inc()
            _log.warning("registration refused", session=session.number, error=str(error))
            session.scheduler.send(Refused(seq=message.seq, code="layout", message=str(error)))
            return
        session.registration = registration
        partition = registration.partition
        _log.info(
            "engine registered",
            session=session.number,
            namespace=session.identity.namespace,
            pod=session.identity.pod,
            partition=str(partition.key),
            ranks=partition.geometry.ranks,
            row_bytes=partition.geometry.row_bytes,
        )
        session.scheduler.send(
            Registered(
                seq=message.seq,
                partition=str(partition.key),
                slot_bytes=partition.geometry.row_bytes,
                session=session.number,
            )
        )
        session.follow_policy()
        for parked in list(self._parked.values()):
            if parked.hello.session_key == session.key:
                self._unpark(session, registration.shape, parked)

    def closed(self, connection: Connection) -> None:
        """Handle the end of a connection, whoever caused it."""
        if (parked := self._parked.pop(connection, None)) is not None:
            parked.timer.cancel()
        if (session := self.schedulers.pop(connection, None)) is not None:
            session.end("its scheduler disconnected")
        if (joined := self.workers.pop(connection, None)) is not None:
            session, worker = joined
            worker.leave(lambda: session.worker_left(worker))
        if (identity := self._owners.pop(connection, None)) is not None:
            self._quotas[identity].connections -= 1
            self._drop_unused(identity)

    def _counted(self, connection: Connection, identity: Identity) -> Quota | None:
        """Return what a new connection counts against; None, and it is refused, if it is full."""
        quota = self._quotas.setdefault(identity, Quota())
        if quota.connections >= MAX_CONNECTIONS:
            message = f"{MAX_CONNECTIONS} connections of this pod exist: it must close some"
            refuse(connection, self._metrics, code="busy", message=message)
            return None
        quota.connections += 1
        self._owners[connection] = identity
        return quota

    def _drop_unused(self, identity: Identity) -> None:
        if self._quotas[identity].unused:
            del self._quotas[identity]

    def _registration(self, session: Session, message: Register) -> Registration:
        if session.registration is not None:
            raise WireError("the engine is registered already")
        if hashlib.sha256(message.identity).hexdigest() != message.fingerprint:
            raise WireError("fingerprint is not the sha256 of identity")
        shape = shape_of(message)
        session.follow_policy()
        size = row_bytes(
            blocks_per_chunk=message.blocks_per_chunk, block_bytes=list(shape.block_bytes)
        )
        key = PartitionKey(namespace=session.identity.namespace, fingerprint=message.fingerprint)
        partition = self._manager.attach(
            session,
            key=key,
            geometry=Geometry(row_bytes=size, ranks=shape.ranks, layout=shape.layout),
        )
        try:
            engine = self._make_engine(shape.scheduler, partition.pool)
        except ValueError:
            self._manager.detach(session, partition)
            raise
        return Registration(
            fingerprint=message.fingerprint,
            shape=shape,
            partition=partition,
            engine=engine,
            jobs=JobTable(ranks=shape.ranks),
        )

    def _join(
        self, session: Session, shape: EngineShape, connection: Connection, hello: Hello
    ) -> None:
        if not 0 <= hello.rank < shape.ranks:
            message = f"rank {hello.rank} is not within 0 and {shape.ranks - 1}"
            refuse(connection, self._metrics, code="protocol", message=message)
            return
        if hello.rank in session.workers:
            message = f"rank {hello.rank} is connected already"
            refuse(connection, self._metrics, code="busy", message=message)
            return
        self._welcome(connection, session)
        if not shape.delegated:
            late = self._late_of(session)
            self._joined(session, Worker(rank=hello.rank, connection=connection, late=late))
            return
        self._spawn(
            take_share(
                session,
                connection,
                rank=hello.rank,
                late=self._late_of(session),
                spawn=self._spawn,
                joined=lambda worker: self._joined(session, worker),
                refused=lambda code, text: refuse(
                    connection, self._metrics, code=code, message=text
                ),
            )
        )

    def _joined(self, session: Session, worker: Worker) -> None:
        self.workers[worker.connection] = (session, worker)
        session.join(worker)

    def _unpark(self, session: Session, shape: EngineShape, parked: Parked) -> None:
        del self._parked[parked.connection]
        parked.timer.cancel()
        if parked.identity != session.identity:
            refuse(parked.connection, self._metrics, code="identity", message=_FOREIGN)
        else:
            self._join(session, shape, parked.connection, parked.hello)

    def _parked_too_long(self, connection: Connection) -> None:
        refuse(
            connection,
            self._metrics,
            code="busy",
            message=f"its scheduler did not register within {PARKED_SECONDS:.0f} s",
        )

    def _welcome(self, connection: Connection, session: Session) -> None:
        connection.send(
            Welcome(
                agent_version=self._version,
                namespace=session.identity.namespace,
                pod=session.identity.pod,
                session=session.number,
            )
        )

    def _late_of(self, session: Session) -> Callable[[Worker, list[int]], None]:
        def late(worker: Worker, segments: list[int]) -> None:
            self._metrics.disconnected.labels("map deadline").inc()
            session.refuse_and_end(
                "protocol", f"rank {worker.rank} did not map or unmap segments {segments} in time"
            )

        return late

    def _released(self, session: Session) -> None:
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self._quotas[session.identity].sessions -= 1
            self._drop_unused(session.identity)
