"""Loads that were accepted: their plans may come in a later step, or never."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvoffload_api.wire.messages import Alloc, AllocReply, Plan
from kvoffload_client.dialogue import Answered, Dialogue

# The built-in ``load.timeoutSeconds`` (operator.md section 1.4), until an answer brings the
# policy's.
_BUILT_IN_LOAD_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """``handle`` is None if nothing was accepted: then no plan is expected, and none is missed."""

    handle: int | None
    give_up_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoad:
    """A load whose plan has come, with the policy's deadline."""

    answered: Answered[AllocReply]
    plan: Plan
    deadline_seconds: float


class Loads:
    """Every accepted load ends once: as a ``PlannedLoad`` or as a failed handle."""

    def __init__(self, *, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._pending: dict[int, _Pending] = {}
        self._failed: list[int] = []
        self._seconds = _BUILT_IN_LOAD_SECONDS

    def __len__(self) -> int:
        """Return how many questions are open."""
        return len(self._pending)

    def ask(
        self,
        handle: int,
        *,
        external_tokens: int,
        blocks: Sequence[Sequence[int]],
        life: int | None,
    ) -> None:
        """Ask for a plan; ``life`` None: the agent does not know the request."""
        columns = [np.asarray(table, dtype="<i8").tobytes() for table in blocks]
        seq = life and self._dialogue.ask(
            lambda seq: Alloc(
                seq=seq, handle=handle, external_tokens=external_tokens, blocks=columns
            ),
            life=life,
        )
        if seq:
            self._pending[seq] = _Pending(
                handle=handle if external_tokens else None,
                give_up_at=time.monotonic() + self._seconds,
            )
        elif external_tokens:
            self._failed.append(handle)

    def collect(self) -> list[PlannedLoad]:
        """Return loads whose plans have come; give up those that are late or asked in vain."""
        planned = []
        now = time.monotonic()
        for seq, pending in list(self._pending.items()):
            answered = self._dialogue.answer(seq, AllocReply, seconds=0.0)
            if answered is None and self._dialogue.expects(seq) and now < pending.give_up_at:
                continue
            if answered is not None and answered.reply.deadline_seconds > 0:
                self._seconds = answered.reply.deadline_seconds
            if answered is None or answered.reply.load is None:
                self._give_up(seq)
                continue
            del self._pending[seq]
            planned.append(
                PlannedLoad(
                    answered=answered,
                    plan=answered.reply.load,
                    deadline_seconds=self._seconds,
                )
            )
        return planned

    def forget(self, handle: int) -> None:
        """Give up the loads of a request that has ended."""
        for seq, pending in list(self._pending.items()):
            if pending.handle == handle:
                self._give_up(seq)

    def take_failed(self) -> tuple[int, ...]:
        """Return handles whose loads will never come, each once."""
        failed, self._failed = tuple(self._failed), []
        return failed

    def _give_up(self, seq: int) -> None:
        pending = self._pending.pop(seq)
        self._dialogue.abandon(seq)
        if pending.handle is not None:
            self._failed.append(pending.handle)
