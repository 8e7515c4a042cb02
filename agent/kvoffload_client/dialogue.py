"""The conversation of a scheduler with its agent: questions out, answers in, under a deadline.

Answers come on the connection's thread and are kept until the engine's thread asks for them.
An answer that nobody waits for any more is undone: its plans are reported as failed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kvoffload_api.wire.framing import FramingError
from kvoffload_api.wire.messages import (
    PROTOCOL_VERSION,
    AllocReply,
    CapsChanged,
    Complete,
    Hello,
    MatchReply,
    Message,
    Refused,
    Register,
    Registered,
    ResetReply,
    StepReply,
    Welcome,
)
from kvoffload_client.connection import Connection
from kvoffload_client.jobs import JobKey
from kvoffload_client.layout import EngineLayout, fingerprint_of
from kvoffload_client.settings import ClientSettings
from kvoffload_client.version import CLIENT_VERSION

_log = logging.getLogger(__name__)

# Sequence numbers of questions start after the one of Register.
_REGISTER_SEQ: Final = 0

Reply = TypeVar("Reply", bound=Message)
Waited = TypeVar("Waited")
Answer = MatchReply | AllocReply | StepReply | ResetReply | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[Reply]):
    """An answer, and the session whose jobs it names."""

    reply: Reply
    boot_id: int
    session: int

    def key(self, job: int) -> JobKey:
        """Return the name of one of its jobs."""
        return JobKey(self.boot_id, self.session, job)


class Dialogue:
    """Registers the engine with each life of the agent, and matches answers to questions.

    Called by the engine's thread, except for the three ``Handler`` methods.
    """

    def __init__(self, *, settings: ClientSettings, layout: EngineLayout) -> None:
        self._settings = settings
        self._register = _register_message(layout)
        self._changed = threading.Condition()
        self._boot_id = 0
        self._session: int | None = None
        self._life = 0
        self._next_seq = _REGISTER_SEQ + 1
        self._expected: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self._refusal = ""
        self.connection = Connection(
            path=settings.socket_path, hello=self._hello, handler=self, name="scheduler"
        )

    # --- the engine's thread ---------------------------------------------------------------

    @property
    def life(self) -> int | None:
        """A number of the current registration that no other one has; None while there is none."""
        with self._changed:
            return self._life if self._session is not None else None

    def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until the agent has accepted the engine."""
        with self._changed:
            return self._changed.wait_for(lambda: self._session is not None, timeout_seconds)

    def tell(self, message: Message, *, life: int) -> bool:
        """Send what has no answer; False if that registration is over."""
        with self._changed:
            return self._alive(life) and self.connection.send(message)

    def ask(self, question: Callable[[int], Message], *, life: int) -> int | None:
        """Send a question made from its sequence number; return that, or None without an agent."""
        with self._changed:
            seq = self._next_seq
            self._next_seq += 1
            if not self._alive(life) or not self.connection.send(question(seq)):
                return None
            self._expected.add(seq)
            return seq

    def answer(self, seq: int, kind: type[Reply], *, seconds: float) -> Answered[Reply] | None:
        """Return the answer, waiting at most ``seconds``; None if it has not come (yet).

        A refusal counts as no answer; ``expects`` tells whether one may still come.
        """
        with self._changed:
            if seconds > 0:
                self._changed.wait_for(lambda: seq not in self._expected, seconds)
            found = self._answers.pop(seq, None)
            if not isinstance(found, kind):
                return None
            assert self._session is not None, "answers go with their session"
            return Answered(reply=found, boot_id=self._boot_id, session=self._session)

    def expects(self, seq: int) -> bool:
        """Whether the answer may still come or is kept."""
        with self._changed:
            return seq in self._expected or seq in self._answers

    def _alive(self, life: int) -> bool:
        return self._session is not None and life == self._life

    def abandon(self, seq: int) -> None:
        """Say that nobody waits for this answer: it is undone now or when it comes."""
        with self._changed:
            self._expected.discard(seq)
            late = self._answers.pop(seq, None)
        if late is not None:
            self._undo(late)

    # --- the connection's thread -----------------------------------------------------------

    def opened(self, *, boot_id: int, welcome: Welcome) -> None:
        """Register with the agent."""
        with self._changed:
            self._boot_id = boot_id
        _log.info(
            "agent %s knows us as %s/%s", welcome.agent_version, welcome.namespace, welcome.pod
        )
        self.connection.send(self._register)

    def received(self, message: Message, fds: list[int]) -> None:
        """Keep an answer that is waited for, undo another one."""
        match message:
            case Registered():
                self._registered(message)
            case Refused(seq=seq) if seq in (-1, _REGISTER_SEQ):
                raise FramingError(f"refused, {message.code}: {message.message}")
            case MatchReply() | AllocReply() | StepReply() | ResetReply() | Refused():
                self._keep(message)
            case CapsChanged():
                _log.info(
                    "%s now lets %s load %s and store %s tokens a request",
                    message.policy,
                    message.entry,
                    message.max_load_tokens,
                    message.max_offload_tokens,
                )
            case _:
                for fd in fds:
                    os.close(fd)
                raise FramingError(f"{type(message).__name__} is not for a scheduler")

    def closed(self) -> None:
        """Give up all questions; whoever waits is woken."""
        with self._changed:
            self._session = None
            self._expected.clear()
            self._answers.clear()
            self._changed.notify_all()

    def _registered(self, message: Registered) -> None:
        with self._changed:
            self._session = message.session
            self._life += 1
            self._changed.notify_all()
        self.connection.settle()

    def _keep(self, message: Answer) -> None:
        with self._changed:
            wanted = message.seq in self._expected
            self._expected.discard(message.seq)
            if wanted:
                self._answers[message.seq] = message
                self._changed.notify_all()
        if isinstance(message, Refused) and message.message != self._refusal:
            self._refusal = message.message
            _log.warning("the node agent refused, %s: %s", message.code, message.message)
        if not wanted:
            self._undo(message)

    def _undo(self, message: Answer) -> None:
        jobs: list[int] = []
        if isinstance(message, StepReply):
            jobs = [plan.job for plan in message.stores]
        elif isinstance(message, AllocReply) and message.load is not None:
            jobs = [message.load.job]
        if jobs:
            self.connection.send(Complete(done=[], failed=jobs))

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            role="scheduler",
            session_key=self._settings.session_key,
            rank=0,
            token=self._settings.read_token(),
            client_version=CLIENT_VERSION,
        )


class Budget:
    """How long hooks may still wait within one scheduling step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left = seconds

    def renew(self) -> None:
        """Begin a new step."""
        self._left = self._seconds

    def spend(self, wait: Callable[[float], Waited], *, reserve: float = 0.0) -> Waited:
        """Call ``wait`` with the seconds left, less a share of the whole, subtract what it took."""
        begun = time.monotonic()
        try:
            return wait(max(0.0, self._left - reserve * self._seconds))
        finally:
            self._left -= time.monotonic() - begun


def _register_message(layout: EngineLayout) -> Register:
    fingerprint, identity = fingerprint_of(layout)
    return Register(
        seq=_REGISTER_SEQ,
        fingerprint=fingerprint,
        identity=identity,
        world_size=layout.world_size,
        tokens_per_hash=layout.tokens_per_hash,
        blocks_per_chunk=layout.blocks_per_chunk,
        block_hash_bytes=layout.block_hash_bytes,
        groups=list(layout.groups),
        enable_prefix_caching=layout.enable_prefix_caching,
        prefix_cache_retention_interval=layout.prefix_cache_retention_interval,
        copies=layout.copies,
    )
