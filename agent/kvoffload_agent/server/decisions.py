"""What a scheduler connection asks, answered under the policy that is in force now."""

from __future__ import annotations

import time
from typing import Final

import structlog

from kvoffload_agent.partitions.manager import PartitionManager
from kvoffload_agent.scheduler.load import UnexpectedLoadError
from kvoffload_agent.scheduler.types import CopyPlan
from kvoffload_agent.server.jobs import Direction
from kvoffload_agent.server.session import Registration, Session
from kvoffload_agent.server.translate import (
    MAX_TOKENS,
    WireError,
    blocks_of,
    hashes_of,
    plan_bytes,
    plan_of,
    plan_tokens,
    step_of,
    within,
)
from kvoffload_agent.tiers.host import DuplicateKeyError
from kvoffload_agent.tiers.pool import NotReadyError
from kvoffload_api.wire.messages import (
    Alloc,
    AllocReply,
    Append,
    Complete,
    Finish,
    FromEngine,
    Match,
    MatchReply,
    NewRequest,
    Plan,
    Refused,
    Reset,
    ResetReply,
    Step,
    StepReply,
)
from kvoffload_api.wire.params import unpack_params

# Loads that no worker acknowledged; stores are bounded by the slots that they write to, too.
MAX_JOBS: Final = 1 << 16

_log = structlog.get_logger(__name__)


class Decisions:
    """Handles the messages of registered sessions; the same object serves all of them."""

    def __init__(self, *, manager: PartitionManager) -> None:
        self._manager = manager

    def handle(self, session: Session, message: FromEngine) -> None:
        """Answer one message; nothing that an engine sends raises here.

        What makes no sense is refused and changes nothing. If our own scheduler fails, its state is
        in doubt: that session ends and its engine recomputes and comes back, the others go on.
        """
        seq = getattr(message, "seq", -1)
        name = type(message).__name__
        try:
            with session.stats.metrics.answers.labels(name).time():
                self._answer(session, message)
        except (WireError, NotReadyError, UnexpectedLoadError) as error:
            session.stats.metrics.refused.labels("protocol").inc()
            _log.warning("message refused", session=session.number, error=str(error))
            if seq >= 0:
                session.scheduler.send(Refused(seq=seq, code="protocol", message=str(error)))
        except DuplicateKeyError as error:
            # The engine's fault, but found in the middle of a step: what it decided is in doubt.
            session.stats.metrics.refused.labels("protocol").inc()
            _log.warning("session refused", session=session.number, error=str(error))
            session.refuse_and_end("protocol", f"{error}: block hashes of a request must differ")
        except Exception:  # noqa: BLE001 - one engine's fault must not end the others
            session.stats.metrics.refused.labels("internal").inc()
            _log.exception("the scheduler failed", session=session.number, message=name)
            session.refuse_and_end(
                "internal", "the agent's scheduler failed, reconnect; the agent's log has details"
            )

    def _answer(self, session: Session, message: FromEngine) -> None:
        registration = session.registration
        if registration is None:
            raise WireError("the engine is not registered")
        session.follow_policy()
        match message:
            case Match():
                self._match(session, registration, message)
            case Alloc():
                self._alloc(session, registration, message)
            case Step():
                self._step(session, registration, message)
            case Reset():
                registration.engine.reset()
                session.requests.reset()
                session.scheduler.send(ResetReply(seq=message.seq))
            case _:
                self._note(session, registration, message)

    def _note(self, session: Session, registration: Registration, message: FromEngine) -> None:
        """Take what has no reply."""
        match message:
            case NewRequest():
                self._new_request(session, registration, message)
            case Append():
                hashes = hashes_of(
                    message.hashes, shape=registration.shape, num_tokens=message.num_tokens
                )
                session.requests.grow(message.handle, hashes=len(hashes))
                registration.engine.append(
                    message.handle, num_tokens=message.num_tokens, hashes=hashes
                )
            case Finish():
                state = session.requests.get(message.handle)
                within("computed", message.computed, 0, MAX_TOKENS)
                state.finished = True
                registration.engine.finish(
                    message.handle, status=message.status, computed=message.computed
                )
            case Complete():
                # For plans that no worker ever saw: no rank owes them any more.
                for rank in range(registration.shape.ranks):
                    session.completed(rank, done=message.done, failed=message.failed)
            case _:
                raise WireError(f"a scheduler may not send {type(message).__name__}")

    def _new_request(
        self, session: Session, registration: Registration, message: NewRequest
    ) -> None:
        hashes = hashes_of(message.hashes, shape=registration.shape, num_tokens=message.num_tokens)
        if not 0 <= message.num_prompt_tokens <= message.num_tokens:
            raise WireError(
                f"num_prompt_tokens is {message.num_prompt_tokens} of {message.num_tokens} tokens"
            )
        caps = session.requests.add(
            message.handle, params=unpack_params(message.params), hashes=len(hashes)
        )
        if caps.max_offload_tokens is not None and message.num_tokens > caps.max_offload_tokens:
            session.stats.limit(
                field="store.maxTokens", policy=caps.sources.get("store.maxTokens", "")
            )
        registration.engine.new_request(
            message.handle,
            num_tokens=message.num_tokens,
            num_prompt_tokens=message.num_prompt_tokens,
            hashes=hashes,
            caps=caps,
            skip_reading_prefix_cache=message.skip_reading_prefix_cache,
        )

    def _match(self, session: Session, registration: Registration, message: Match) -> None:
        state = session.requests.get(message.handle)
        within("computed", message.computed, 0, MAX_TOKENS)
        within("max_new_tokens", message.max_new_tokens or 0, 0, MAX_TOKENS)
        result = registration.engine.match(
            message.handle,
            computed=message.computed,
            max_new_tokens=message.max_new_tokens,
            now=time.monotonic(),
        )
        policy = state.resolved.caps.sources.get(result.limited_by, "")
        session.stats.match(tokens=result.tokens or 0, limited_by=result.limited_by, policy=policy)
        session.scheduler.send(
            MatchReply(
                seq=message.seq,
                tokens=result.tokens,
                load_async=result.load_async,
                limited_by=result.limited_by,
                policy=policy,
            )
        )

    def _alloc(self, session: Session, registration: Registration, message: Alloc) -> None:
        state = session.requests.get(message.handle)
        within("external_tokens", message.external_tokens, 0, MAX_TOKENS)
        if len(registration.jobs) >= MAX_JOBS:
            raise WireError(f"{MAX_JOBS} copies are not acknowledged: workers must report them")
        blocks = blocks_of(message.blocks, shape=registration.shape)
        session.requests.allocate(sum(map(len, blocks)))
        result = registration.engine.alloc(
            message.handle, external_tokens=message.external_tokens, blocks=blocks
        )
        plan = None
        if result.plan is not None:
            session.stats.planned(result.sources)
            plan = self._plan(registration, result.plan, "load", tokens=message.external_tokens)
        session.scheduler.send(
            AllocReply(seq=message.seq, load=plan, deadline_seconds=state.resolved.timeout_seconds)
        )

    def _step(self, session: Session, registration: Registration, message: Step) -> None:
        step = step_of(message, shape=registration.shape, known=session.requests.known)
        for entry in step.requests:
            if entry.blocks is not None:
                session.requests.tabled(
                    entry.handle,
                    blocks=sum(map(len, entry.blocks)),
                    anew=entry.new or entry.resumed,
                )
        session.requests.allocated = 0
        result = registration.engine.step(step, now=time.monotonic())
        session.stats.step(evicted=result.evicted)
        for handle in step.finished:
            session.requests.forget(handle)
        stores = [
            self._plan(
                registration, plan, "store", tokens=plan_tokens(plan, shape=registration.shape)
            )
            for plan in result.stores
        ]
        session.scheduler.send(
            StepReply(seq=message.seq, stores=stores, flush=list(result.flush), busy=result.busy)
        )
        if stores:
            self._manager.consider(registration.partition)

    def _plan(
        self, registration: Registration, plan: CopyPlan, direction: Direction, *, tokens: int
    ) -> Plan:
        shape = registration.shape
        message = plan_of(plan, shape=shape, space=registration.partition.space)
        registration.jobs.add(
            plan.job,
            direction=direction,
            tokens=tokens,
            size=plan_bytes(plan, shape=shape),
            plan=message if shape.delegated else None,
        )
        return message
