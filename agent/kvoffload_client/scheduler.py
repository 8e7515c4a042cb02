"""The scheduler side of an engine's session: what to load, what to store, what to flush."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from kvoffload_api.wire.messages import (
    Alloc,
    AllocReply,
    Append,
    Finish,
    Match,
    MatchReply,
    Plan,
    Reset,
    ResetReply,
    StepReply,
)
from kvoffload_client.dialogue import Answered, Budget, Dialogue
from kvoffload_client.inflight import BlocksInFlight
from kvoffload_client.jobs import Job, JobKey
from kvoffload_client.layout import EngineLayout
from kvoffload_client.outcomes import MatchOutcome, StepInput, StepOutcome
from kvoffload_client.requests import PendingLoad, Question, RequestState
from kvoffload_client.settings import ClientSettings
from kvoffload_client.steps import Rewritten, blocks_of, step_message

# DESIGN section 4, "Two deadlines": after so many answers that missed the hook deadline a request
# is computed without the cache.
_MAX_LATE: Final = 3
# The built-in ``load.timeoutSeconds`` (operator.md section 1.4), until an answer brings the
# policy's.
_BUILT_IN_LOAD_SECONDS: Final = 5.0

# The part of the hook deadline that lookups leave for the step: without its answer stores are lost,
# while a lookup is only asked again.
_STEP_SHARE: Final = 0.4

_NO_MATCH: Final = MatchOutcome(tokens=0)
_LATER: Final = MatchOutcome(tokens=None)


class SchedulerSession:
    """Blocking session for an engine's scheduling loop; call it from one thread.

    Between two calls of ``step`` all methods together wait for the agent no longer than the hook
    deadline, and none raises because of it. Without an agent, matches are 0, nothing is stored, and
    loads in flight are reported as failed.
    """

    def __init__(self, *, settings: ClientSettings, layout: EngineLayout) -> None:
        self._dialogue = Dialogue(settings=settings, layout=layout)
        self._tokens_per_block = [group.tokens_per_block for group in layout.groups]
        self._budget = Budget(settings.hook_deadline_seconds)
        self._requests: dict[int, RequestState] = {}
        self._next_handle = 1
        self._steps = 0
        self._in_flight = BlocksInFlight()
        self._rewritten = Rewritten()
        self._pending_loads: dict[int, PendingLoad] = {}
        self._failed_loads: list[int] = []
        self._load_seconds = _BUILT_IN_LOAD_SECONDS
        self._flush_all = False

    def start(self) -> None:
        """Begin to connect in the background and return at once."""
        self._dialogue.connection.start()

    def wait_ready(self, *, timeout_seconds: float) -> bool:
        """Wait until the agent has accepted the engine; for start-up and tests only."""
        return self._dialogue.wait_ready(timeout_seconds)

    def close(self) -> None:
        """Close the connection and end the session's thread."""
        self._dialogue.connection.close()

    @property
    def ready(self) -> bool:
        """Whether the agent has accepted the engine and is connected."""
        return self._dialogue.life is not None

    def new_request(
        self,
        *,
        request_id: str,
        num_tokens: int,
        num_prompt_tokens: int,
        hashes: Iterable[bytes],
        params: Any = None,
        skip_reading_prefix_cache: bool = False,
    ) -> int:
        """Announce a request with its block hashes so far; return its handle."""
        request = RequestState(
            handle=self._next_handle,
            request_id=request_id,
            num_tokens=num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            params=params,
            skip_reading_prefix_cache=skip_reading_prefix_cache,
            hashes=bytearray().join(hashes),
        )
        self._next_handle += 1
        self._requests[request.handle] = request
        life = self._dialogue.life
        if life is not None:
            self._announce(request, life)
        return request.handle

    def append(self, handle: int, *, num_tokens: int, hashes: Iterable[bytes]) -> None:
        """Tell that a request has grown to ``num_tokens``, with the hashes that came with it."""
        request = self._requests[handle]
        grown = b"".join(hashes)
        request.num_tokens = num_tokens
        request.hashes += grown
        life = self._dialogue.life
        if life is not None and request.announced == life:
            self._dialogue.tell(
                Append(handle=handle, num_tokens=num_tokens, hashes=grown), life=life
            )

    def prefetch(self, handle: int, *, computed: int, max_new_tokens: int | None = None) -> None:
        """Send the lookup now; a ``match`` with the same arguments takes its answer."""
        life = self._dialogue.life
        if life is not None:
            self._ask_match(self._requests[handle], computed, max_new_tokens, life)

    def match(
        self, handle: int, *, computed: int, max_new_tokens: int | None = None
    ) -> MatchOutcome:
        """Return how many tokens beyond ``computed`` can be loaded.

        After three answers "ask later" because the hook deadline passed, the answer is 0.
        """
        request = self._requests[handle]
        life = self._dialogue.life
        question = life and self._ask_match(request, computed, max_new_tokens, life)
        if not question:
            return _NO_MATCH
        patient = request.late < _MAX_LATE
        reply = question.reply or (self._await_match(question) if patient else None)
        if reply is None and patient and self._dialogue.expects(question.seq):
            request.late += 1
            return _LATER
        self._drop_question(request)
        if reply is None:  # refused, too late for good, or the agent has gone
            return _NO_MATCH
        return MatchOutcome(
            tokens=reply.tokens,
            load_async=reply.load_async,
            limited_by=reply.limited_by,
            policy=reply.policy,
        )

    def alloc(self, handle: int, *, external_tokens: int, blocks: Sequence[Sequence[int]]) -> None:
        """Tell the whole block table after allocation, per group.

        A negative id is a block that already has a hash, 0 the null block. The load comes with the
        outcome of this step or of a later one; see ``StepOutcome``.
        """
        self._rewritten.add(handle, (block for table in blocks for block in table if block > 0))
        life = self._dialogue.life
        request = self._requests[handle]
        seq = None
        if life is not None and request.announced == life:
            columns = [np.asarray(table, dtype="<i8").tobytes() for table in blocks]
            seq = self._dialogue.ask(
                lambda seq: Alloc(
                    seq=seq, handle=handle, external_tokens=external_tokens, blocks=columns
                ),
                life=life,
            )
        if seq is not None:
            give_up_at = time.monotonic() + self._load_seconds
            expected = handle if external_tokens else 0
            self._pending_loads[seq] = PendingLoad(handle=expected, give_up_at=give_up_at)
        elif external_tokens:
            self._failed_loads.append(handle)

    def step(self, step: StepInput) -> StepOutcome:
        """Build one step; stores are skipped if the answer misses the hook deadline."""
        self._rewritten.add_step(step, self._tokens_per_block)
        flush = self._fences(step)
        answered = self._ask_step(step)
        for handle in step.finished:
            self._forget(handle)
        loads = self._collect_loads()
        stores = self._collect_stores(answered, flush) if answered else ()
        failed, self._failed_loads = tuple(self._failed_loads), []
        self._rewritten.clear()
        self._budget.renew()
        self._steps += 1
        return StepOutcome(
            loads=loads,
            failed_loads=failed,
            stores=stores,
            flush=frozenset(flush),
            busy=bool(self._pending_loads) or (answered is not None and answered.reply.busy),
        )

    def finish(self, handle: int, *, status: str, computed: int) -> None:
        """Tell that a request ended: ``stopped``, ``length`` or ``aborted``.

        The handle must also be in ``StepInput.finished`` of a later step, which forgets it.
        """
        request = self._requests[handle]
        self._drop_question(request)
        life = self._dialogue.life
        if life is not None and request.announced == life:
            self._dialogue.tell(Finish(handle=handle, status=status, computed=computed), life=life)

    def complete(self, keys: Iterable[JobKey]) -> None:
        """Tell that every rank has ended these jobs, well or not: their blocks are free of fences.

        Workers report to the agent themselves; this is for the session's own table.
        """
        for key in keys:
            self._in_flight.remove(key)

    def reset(self) -> bool:
        """Reset the prefix cache on the agent's side; False if it was not acknowledged in time.

        Every job in flight is flushed by the next step. Messages are handled in order, so that
        whatever is asked after this sees the reset, acknowledged or not.
        """
        self._flush_all = True
        for request in self._requests.values():
            self._drop_question(request)
        life = self._dialogue.life
        seq = None if life is None else self._dialogue.ask(lambda seq: Reset(seq=seq), life=life)
        if seq is None:
            return False
        answer = self._budget.spend(
            lambda left: self._dialogue.answer(seq, ResetReply, seconds=left)
        )
        self._dialogue.abandon(seq)
        return answer is not None

    # --- lookups -----------------------------------------------------------------------------

    def _announce(self, request: RequestState, life: int) -> bool:
        if request.announced != life and self._dialogue.tell(request.announcement(), life=life):
            request.announced = life
            request.tabled = None
            request.question = None
        return request.announced == life

    def _ask_match(
        self, request: RequestState, computed: int, max_new_tokens: int | None, life: int
    ) -> Question | None:
        """Return the question of a lookup, sent now unless an equal one is still good."""
        if not self._announce(request, life):
            return None
        known = request.question
        if known is not None:
            self._receive_match(known, seconds=0.0)
            if known.answers(
                computed=computed, max_new_tokens=max_new_tokens, step=self._steps
            ) and (known.reply is not None or self._dialogue.expects(known.seq)):
                return known
            self._drop_question(request)
        seq = self._dialogue.ask(
            lambda seq: Match(
                seq=seq, handle=request.handle, computed=computed, max_new_tokens=max_new_tokens
            ),
            life=life,
        )
        if seq is None:
            return None
        request.question = Question(
            seq=seq,
            computed=computed,
            max_new_tokens=max_new_tokens,
            sent_at_step=self._steps,
        )
        return request.question

    def _await_match(self, question: Question) -> MatchReply | None:
        self._budget.spend(
            lambda left: self._receive_match(question, seconds=left), reserve=_STEP_SHARE
        )
        return question.reply

    def _receive_match(self, question: Question, *, seconds: float) -> None:
        if question.reply is None:
            answered = self._dialogue.answer(question.seq, MatchReply, seconds=seconds)
            question.reply = answered.reply if answered else None

    def _drop_question(self, request: RequestState) -> None:
        if request.question is not None:
            self._dialogue.abandon(request.question.seq)
            request.question = None

    # --- steps -------------------------------------------------------------------------------

    def _fences(self, step: StepInput) -> set[JobKey]:
        """Return the jobs, of earlier steps, that must end before this step writes."""
        if self._flush_all:
            self._flush_all = False
            return self._in_flight.all()
        flush = self._in_flight.touching(self._rewritten.blocks())
        for handle in step.preempted:
            flush |= self._in_flight.of_request(handle)
        return flush

    def _ask_step(self, step: StepInput) -> Answered[StepReply] | None:
        life = self._dialogue.life
        if life is None:
            return None
        for request in step.requests:
            if request.new or request.resumed:
                state = self._requests[request.handle]
                if self._announce(state, life):
                    state.tabled = life
        known = {h for h, state in self._requests.items() if state.announced == life}
        tabled = {h for h in known if self._requests[h].tabled == life}
        seq = self._dialogue.ask(
            lambda seq: step_message(step, seq=seq, known=known, tabled=tabled), life=life
        )
        if seq is None:
            return None
        answered = self._budget.spend(
            lambda left: self._dialogue.answer(seq, StepReply, seconds=left)
        )
        if answered is None:
            self._dialogue.abandon(seq)
        return answered

    def _collect_loads(self) -> tuple[Job, ...]:
        """Return loads whose plans have come; give up those that are late or asked in vain."""
        loads = []
        now = time.monotonic()
        for seq, pending in list(self._pending_loads.items()):
            answered = self._dialogue.answer(seq, AllocReply, seconds=0.0)
            if answered is None and self._dialogue.expects(seq) and now < pending.give_up_at:
                continue
            del self._pending_loads[seq]
            job = self._load(answered) if answered else None
            if job is not None:
                loads.append(job)
                continue
            self._dialogue.abandon(seq)
            if pending.handle:
                self._failed_loads.append(pending.handle)
        return tuple(loads)

    def _load(self, answered: Answered[AllocReply]) -> Job | None:
        if answered.reply.deadline_seconds > 0:
            self._load_seconds = answered.reply.deadline_seconds
        plan = answered.reply.load
        if plan is None:
            return None
        return self._enter(answered, plan, "load")

    def _collect_stores(self, answered: Answered[StepReply], flush: set[JobKey]) -> tuple[Job, ...]:
        """Enter the stores; those of blocks that another request writes in this step are flushed.

        They are the last stores of a request that has ended, whose blocks are in use again.
        """
        flush |= {
            key for job in answered.reply.flush if (key := answered.key(job)) in self._in_flight
        }
        stores = []
        for plan in answered.reply.stores:
            job = self._enter(answered, plan, "store")
            stores.append(job)
            if self._rewritten.by_others(job.handle, blocks_of(plan)):
                flush.add(job.key)
        return tuple(stores)

    def _enter(self, answered: Answered[Any], plan: Plan, kind: Any) -> Job:
        seconds = self._load_seconds if kind == "load" else 0.0
        job = Job(answered.key(plan.job), kind, plan, seconds)
        self._in_flight.add(job, blocks_of(plan))
        return job

    def _forget(self, handle: int) -> None:
        request = self._requests.pop(handle, None)
        if request is not None:
            self._drop_question(request)
        for seq, pending in list(self._pending_loads.items()):
            if pending.handle == handle:
                del self._pending_loads[seq]
                self._dialogue.abandon(seq)
                self._failed_loads.append(handle)
