"""All connections of the agent: hello, identification, dispatch."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from kvoffload_agent.server.connection import MAX_REPORT_BYTES, Connection
from kvoffload_agent.server.decisions import Decisions
from kvoffload_agent.server.identity import Identifier, IdentityError
from kvoffload_agent.server.listener import Peer
from kvoffload_agent.server.refusal import refuse
from kvoffload_agent.server.registry import SessionRegistry
from kvoffload_agent.server.session import FromWorker, Session
from kvoffload_agent.server.stats import Metrics
from kvoffload_agent.server.translate import WireError
from kvoffload_agent.server.worker import Worker
from kvoffload_api.wire.messages import (
    PROTOCOL_VERSION,
    FromEngine,
    Hello,
    Register,
)

# A peer that connects and says nothing holds a descriptor.
HELLO_SECONDS: Final = 10.0
# 256 pods of a node (``operator.md`` 1.4) with 8 workers each, and as many again in reconnects.
MAX_CONNECTIONS: Final = 4096
MAX_KEY_LENGTH: Final = 256

_log = structlog.get_logger(__name__)


class Hub:
    """Makes connections, hands their messages on; ``spawn`` starts a task that the agent owns."""

    def __init__(
        self,
        *,
        boot_id: int,
        identifier: Identifier,
        registry: SessionRegistry,
        decisions: Decisions,
        metrics: Metrics,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._boot_id = boot_id
        self._identifier = identifier
        self._registry = registry
        self._decisions = decisions
        self._metrics = metrics
        self._spawn = spawn
        self._hello_timers: dict[Connection, asyncio.TimerHandle] = {}
        self._peers: dict[Connection, Peer] = {}
        self.draining = False
        """Set once the agent is asked to stop."""

    @property
    def sessions(self) -> list[Session]:
        """All sessions, also those whose workers have not left yet."""
        return self._registry.sessions

    def accept(self, sock: socket.socket, peer: Peer) -> Connection:
        """Return the protocol of a new connection, which has some seconds to say hello."""
        connection = Connection(
            sock=sock,
            boot_id=self._boot_id,
            on_made=self._made,
            on_message=self.message,
            on_closed=self.closed,
        )
        connection.name = f"pid {peer.pid}"
        self._peers[connection] = peer
        return connection

    def _made(self, connection: Connection) -> None:
        if self.draining:
            self._refuse(connection, "busy", "the agent stops: come back when it is up again")
        elif len(self._peers) > MAX_CONNECTIONS:
            self._refuse(connection, "busy", f"over {MAX_CONNECTIONS} connections")
        else:
            self._hello_timers[connection] = asyncio.get_running_loop().call_later(
                HELLO_SECONDS, self._refuse, connection, "protocol", "no hello in time"
            )

    def closed(self, connection: Connection) -> None:
        """Handle the end of a connection, whoever caused it."""
        self._peers.pop(connection, None)
        self._stop_timer(connection)
        self._registry.closed(connection)

    def close_all(self) -> None:
        """Close every connection, at the end of the agent."""
        for _, worker in self._registry.workers.values():
            worker.halt()
        for connection in list(self._peers):
            connection.abandon()

    @property
    def loads_in_flight(self) -> int:
        """Loads that not every rank has acknowledged, of all sessions."""
        return sum(session.loads_in_flight for session in self.sessions)

    def drain(self) -> None:
        """Take no new peer, and let sessions plan nothing more: the agent is to stop."""
        self.draining = True
        for session in self.sessions:
            session.draining = True
            session.follow_policy()

    def follow_policy(self) -> None:
        """Let every session take a changed configuration at once, not at its next question."""
        for session in self.sessions:
            session.follow_policy()

    def message(self, connection: Connection, message: FromEngine) -> None:
        """Handle one message, in the order of its connection."""
        if (session := self._registry.schedulers.get(connection)) is not None:
            if isinstance(message, Register):
                self._registry.register(session, message)
            else:
                self._decisions.handle(session, message)
        elif (joined := self._registry.workers.get(connection)) is not None:
            if isinstance(message, FromWorker):
                self._worker_message(*joined, message)
            else:
                self._refuse(connection, "protocol", f"a worker sent {type(message).__name__}")
        elif isinstance(message, Hello) and not connection.trusted:
            connection.pause()
            self._spawn(self._hello(connection, message))
        else:
            self._refuse(connection, "protocol", "the first message must be one Hello")

    async def _hello(self, connection: Connection, hello: Hello) -> None:
        """Identify a peer; its further messages wait meanwhile."""
        fault = _fault_of(hello)
        if fault:
            self._refuse(connection, "protocol", fault)
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
        self._stop_timer(connection)
        connection.trusted = True
        rank = f" rank {hello.rank}" if hello.role == "worker" else ""
        connection.name = f"{identity.namespace}/{identity.pod} {hello.role}{rank}"
        if hello.role == "scheduler":
            self._registry.open(connection, identity, hello)
        else:
            connection.max_bytes = MAX_REPORT_BYTES
            self._registry.enter(connection, identity, hello)
        connection.resume()

    def _worker_message(
        self,
        session: Session,
        worker: Worker,
        message: FromWorker,
    ) -> None:
        try:
            session.from_worker(worker, message)
        except WireError as error:
            session.refuse_and_end("protocol", str(error))
        except Exception:  # noqa: BLE001 - one engine's fault must not end the others
            _log.exception("a worker's report failed", session=session.number)
            session.refuse_and_end("internal", "the agent failed on a report, reconnect")

    def _stop_timer(self, connection: Connection) -> None:
        timer = self._hello_timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _refuse(self, connection: Connection, code: str, message: str) -> None:
        refuse(connection, self._metrics, code=code, message=message)


def _fault_of(hello: Hello) -> str:
    """Return what is wrong with a hello, ``""`` if nothing is."""
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"protocol {hello.protocol} is not {PROTOCOL_VERSION}: client and agent must be of"
            f" versions that speak the same"
        )
    if not 0 < len(hello.session_key) <= MAX_KEY_LENGTH:
        return f"session_key must have 1 to {MAX_KEY_LENGTH} characters"
    if hello.role not in {"scheduler", "worker"}:
        return f"role {hello.role!r} is neither scheduler nor worker"
    return ""
