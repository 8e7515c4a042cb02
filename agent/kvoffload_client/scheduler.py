"""The scheduler side of an engine's session: what to load, what to store, what to flush."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvoffload_api.wire.messages import Finish, Plan, Reset, ResetReply, StepReply
from kvoffload_client.dialogue import Answered, Budget, Dialogue, Reply
from kvoffload_client.fences import Fences
from kvoffload_client.jobs import Job, JobKey, Kind
from kvoffload_client.layout import EngineLayout
from kvoffload_client.loads import Loads
from kvoffload_client.lookups import Lookups
from kvoffload_client.outcomes import MatchOutcome, StepInput, StepOutcome
from kvoffload_client.requests import RequestState
from kvoffload_client.settings import ClientSettings
from kvoffload_client.steps import step_message


class SchedulerSession:
    """Blocking session for an engine's scheduling loop; call it from one thread.

    Between two calls of ``step`` all methods together wait for the agent no longer than the hook
    deadline, and none raises because of it. Without an agent, matches are 0, nothing is stored, and
    loads in flight are reported as failed.
    """

    def __init__(self, *, settings: ClientSettings, layout: EngineLayout) -> None:
        self._dialogue = Dialogue(settings=settings, layout=layout)
        self._budget = Budget(settings.hook_deadline_seconds)
        self._lookups = Lookups(dialogue=self._dialogue, budget=self._budget)
        self._loads = Loads(dialogue=self._dialogue)
        self._requests: dict[int, RequestState] = {}
        self._next_handle = 1
        self._fences = Fences([group.tokens_per_block for group in layout.groups])

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
            self._lookups.announce(request, life)
        return request.handle

    def append(self, handle: int, *, num_tokens: int, hashes: Iterable[bytes]) -> None:
        """Tell that a request has grown to ``num_tokens``, with the hashes that came with it.

        Without hashes nothing can be stored that could not before: only the end of the request
        needs the count, so it waits for that.
        """
        request = self._requests[handle]
        grown = b"".join(hashes)
        request.num_tokens = num_tokens
        request.hashes += grown
        life = self._knowing(request)
        if grown and life is not None:
            self._lookups.tell_growth(request, grown, life)

    def prefetch(self, handle: int, *, computed: int, max_new_tokens: int | None = None) -> None:
        """Send the lookup now; a ``match`` with the same arguments takes its answer."""
        self._lookups.ask(self._requests[handle], computed=computed, max_new_tokens=max_new_tokens)

    def match(
        self, handle: int, *, computed: int, max_new_tokens: int | None = None
    ) -> MatchOutcome:
        """Return how many tokens beyond ``computed`` can be loaded.

        After three answers "ask later" because the hook deadline passed, the answer is 0.
        """
        request = self._requests[handle]
        request.local = computed
        return self._lookups.match(request, computed=computed, max_new_tokens=max_new_tokens)

    def alloc(self, handle: int, *, external_tokens: int, blocks: Sequence[Sequence[int]]) -> None:
        """Tell the whole block table after allocation, per group.

        A negative id is a block that already has a hash, 0 the null block. The load comes with the
        outcome of this step or of a later one; see ``StepOutcome``.
        """
        request = self._requests[handle]
        self._fences.allocated(request, blocks, loads=external_tokens > 0)
        self._loads.ask(
            handle,
            external_tokens=external_tokens,
            blocks=blocks,
            life=self._knowing(request),
        )

    def step(self, step: StepInput) -> StepOutcome:
        """Build one step; stores are skipped if the answer misses the hook deadline."""
        flush = self._fences.begin(step)
        answered = self._ask_step(step)
        for handle in step.finished:
            self._forget(handle)
        loads = tuple(
            self._enter(load.answered, load.plan, "load", load.deadline_seconds)
            for load in self._loads.collect()
        )
        stores = self._stores(answered, flush) if answered else ()
        self._fences.end()
        self._budget.renew()
        self._lookups.step += 1
        return StepOutcome(
            loads=loads,
            failed_loads=self._loads.take_failed(),
            stores=stores,
            flush=frozenset(flush),
            busy=len(self._loads) > 0 or (answered is not None and answered.reply.busy),
        )

    def finish(self, handle: int, *, status: str, computed: int) -> None:
        """Tell that a request ended: ``stopped``, ``length`` or ``aborted``.

        The handle must also be in ``StepInput.finished`` of a later step, which forgets it.
        """
        request = self._requests[handle]
        self._lookups.drop(request)
        life = self._knowing(request)
        if life is None:
            return
        if request.told_tokens != request.num_tokens:
            self._lookups.tell_growth(request, b"", life)
        self._dialogue.tell(Finish(handle=handle, status=status, computed=computed), life=life)

    def complete(self, keys: Iterable[JobKey]) -> None:
        """Tell that every rank has ended these jobs, well or not: their blocks are free of fences.

        Workers report to the agent themselves; this is for the session's own table.
        """
        self._fences.ended(keys)

    def reset(self) -> bool:
        """Reset the prefix cache on the agent's side; False if it was not acknowledged in time.

        Every job in flight is flushed by the next step. Messages are handled in order, so that
        whatever is asked after this sees the reset, acknowledged or not.
        """
        self._fences.reset()
        for request in self._requests.values():
            self._lookups.drop(request)
        life = self._dialogue.life
        seq = None if life is None else self._dialogue.ask(lambda seq: Reset(seq=seq), life=life)
        return seq is not None and self._await(seq, ResetReply) is not None

    def _knowing(self, request: RequestState) -> int | None:
        """Return the current registration if the agent knows the request in it."""
        life = self._dialogue.life
        return life if life is not None and request.announced == life else None

    def _await(self, seq: int, kind: type[Reply]) -> Answered[Reply] | None:
        """Return an answer if it comes within the hook deadline, else have it undone."""
        answered = self._budget.spend(lambda left: self._dialogue.answer(seq, kind, seconds=left))
        if answered is None:
            self._dialogue.abandon(seq)
        return answered

    def _ask_step(self, step: StepInput) -> Answered[StepReply] | None:
        life = self._dialogue.life
        if life is None:
            return None
        for item in step.requests:
            request = self._requests[item.handle]
            if (item.new or item.resumed) and self._lookups.announce(request, life):
                request.tabled = life

        def known(handle: int) -> bool:
            request = self._requests.get(handle)
            return request is not None and request.announced == life

        def tabled(handle: int) -> bool:
            return known(handle) and self._requests[handle].tabled == life

        seq = self._dialogue.ask(
            lambda seq: step_message(step, seq=seq, known=known, tabled=tabled), life=life
        )
        return None if seq is None else self._await(seq, StepReply)

    def _stores(self, answered: Answered[StepReply], flush: set[JobKey]) -> tuple[Job, ...]:
        """Enter the stores; flush those of blocks that another request writes in this step."""
        named = {answered.key(job) for job in answered.reply.flush}
        flush |= {key for key in named if key in self._fences}
        stores = []
        for plan in answered.reply.stores:
            job = self._enter(answered, plan, "store")
            stores.append(job)
            if job.key in named or self._fences.must_end_now(job):
                flush.add(job.key)
        return tuple(stores)

    def _enter(
        self, answered: Answered[Any], plan: Plan, kind: Kind, deadline_seconds: float = 0.0
    ) -> Job:
        job = Job(answered.key(plan.job), kind, plan, deadline_seconds)
        self._fences.enter(job)
        return job

    def _forget(self, handle: int) -> None:
        request = self._requests.pop(handle, None)
        if request is not None:
            self._lookups.drop(request)
        self._loads.forget(handle)
