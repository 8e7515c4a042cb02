"""Announcing requests to the agent, and looking up what can be loaded for them."""

from __future__ import annotations

from typing import Final

from kvoffload_api.wire.messages import Append, Match, MatchReply
from kvoffload_client.dialogue import Budget, Dialogue
from kvoffload_client.outcomes import MatchOutcome
from kvoffload_client.requests import Question, RequestState

# DESIGN section 4, "Two deadlines": after so many answers that missed the hook deadline a request
# is computed without the cache.
_MAX_LATE: Final = 3
# The part of the hook deadline that lookups leave for the step: without its answer stores are lost,
# while a lookup is only asked again.
_STEP_SHARE: Final = 0.4

_NO_MATCH: Final = MatchOutcome(tokens=0)
_LATER: Final = MatchOutcome(tokens=None)


class Lookups:
    """One question at most is open per request; its answer is kept while its lease lasts."""

    def __init__(self, *, dialogue: Dialogue, budget: Budget) -> None:
        self._dialogue = dialogue
        self._budget = budget
        self.step = 0
        """The number of the step that is being built: leases are counted in steps."""

    def announce(self, request: RequestState, life: int) -> bool:
        """Make the agent know a request; False if it cannot be told."""
        if request.announced != life and self._dialogue.tell(request.announcement(), life=life):
            request.announced = life
            request.told_tokens = request.num_tokens
            request.tabled = None
            request.question = None
        return request.announced == life

    def tell_growth(self, request: RequestState, hashes: bytes, life: int) -> None:
        """Tell how long a request is now."""
        request.told_tokens = request.num_tokens
        self._dialogue.tell(
            Append(handle=request.handle, num_tokens=request.num_tokens, hashes=hashes), life=life
        )

    def match(
        self, request: RequestState, *, computed: int, max_new_tokens: int | None
    ) -> MatchOutcome:
        """Return the answer if it comes within what is left of the hook deadline."""
        question = self.ask(request, computed=computed, max_new_tokens=max_new_tokens)
        if question is None:
            return _NO_MATCH
        patient = request.late < _MAX_LATE
        if question.reply is None and patient:
            self._budget.spend(
                lambda left: self._receive(question, seconds=left), reserve=_STEP_SHARE
            )
        reply = question.reply
        if reply is None and patient and self._dialogue.expects(question.seq):
            request.late += 1
            return _LATER
        self.drop(request)
        if reply is None:  # refused, too late for good, or the agent has gone
            return _NO_MATCH
        if reply.tokens and not reply.load_async:
            # Plans may come in a later step than they were asked for: what has to be loaded before
            # a forward is computed instead. No agent of this version offers it, unasked.
            return _NO_MATCH
        return MatchOutcome(
            tokens=reply.tokens,
            load_async=reply.load_async,
            limited_by=reply.limited_by,
            policy=reply.policy,
        )

    def ask(
        self, request: RequestState, *, computed: int, max_new_tokens: int | None
    ) -> Question | None:
        """Return the open question of a lookup, sent now unless an equal one is still good."""
        life = self._dialogue.life
        if life is None or not self.announce(request, life):
            self.drop(request)
            return None
        known = request.question
        if known is not None:
            self._receive(known, seconds=0.0)
            answered = known.reply is not None
            same = known.answers(computed=computed, max_new_tokens=max_new_tokens, step=self.step)
            if same and (answered or self._dialogue.expects(known.seq)):
                return known
            self.drop(request)
        seq = self._dialogue.ask(
            lambda seq: Match(
                seq=seq, handle=request.handle, computed=computed, max_new_tokens=max_new_tokens
            ),
            life=life,
        )
        if seq is None:
            return None
        request.question = Question(
            seq=seq, computed=computed, max_new_tokens=max_new_tokens, sent_at_step=self.step
        )
        return request.question

    def drop(self, request: RequestState) -> None:
        """Forget the open question."""
        if request.question is not None:
            self._dialogue.abandon(request.question.seq)
            request.question = None

    def _receive(self, question: Question, *, seconds: float) -> None:
        if question.reply is None:
            answered = self._dialogue.answer(question.seq, MatchReply, seconds=seconds)
            question.reply = answered.reply if answered else None
