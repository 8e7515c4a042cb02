"""One request's life, from its first token to its end, in random steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st
from tests.unit.scheduler.builders import StubTier, World
from tests.unit.scheduler.scenes import Scene, scenes

from kvoffload_agent.scheduler.geometry import ceil_div
from kvoffload_agent.scheduler.types import (
    CopyPlan,
    GroupKind,
    Handoff,
    RequestCaps,
    StepResult,
    TierMatcher,
)

# What happens next, and how much of it.
Act = tuple[Literal["compute", "hand over", "done", "room", "caps", "preempt"], int]
ENOUGH = 4096
LIMITS = st.none() | st.integers(0, 70)
FILTERS = st.sampled_from([None, (), (TierMatcher(locality="remote"),)])
CAPS = st.builds(
    RequestCaps,
    max_load_tokens=LIMITS,
    max_offload_tokens=LIMITS,
    prompt_only=st.booleans(),
    load_tiers=FILTERS,
    store_tiers=FILTERS,
)


@dataclass(frozen=True)
class Plot:
    """A scene, the caps, what happens, and how it ends. ``later``: caps from some time on."""

    scene: Scene
    caps: RequestCaps
    later: RequestCaps
    acts: tuple[Act, ...]
    status: str
    slots: int
    retention: int | None


@st.composite
def plots(draw: st.DrawFn, slots: st.SearchStrategy[int] | None = None) -> Plot:
    """``slots``: of host memory; few of them make it refuse."""
    scene = replace(draw(scenes(letters="HMMMMR")), local=0)
    chunks = [group.tokens_per_block * scene.per_chunk for group in scene.groups]
    retentions = [None, None, 0]
    if len(set(chunks)) == 1:
        retentions += [chunks[0], 2 * chunks[0]]
    kinds = ["compute", "compute", "hand over", "done", "room", "caps", "preempt"]
    act = st.tuples(st.sampled_from(kinds), st.integers(1, 30))
    return Plot(
        scene=scene,
        caps=draw(CAPS),
        later=draw(CAPS),
        acts=tuple(draw(st.lists(act, min_size=1, max_size=12))),  # type: ignore[arg-type]
        status=draw(st.sampled_from(["stopped", "aborted"])),
        slots=draw(slots if slots is not None else st.sampled_from([0, 3, 8, ENOUGH])),
        retention=draw(st.sampled_from(retentions)),
    )


class Life:
    """Follows vLLM's scheduler: tables grow with what is computed, windows slide.

    ``limit``: tokens that may be offloaded by the step that was built last. ``given``: as
    ``tables``, with the blocks that left a window: they hold what they held, nobody gets them.
    """

    def __init__(self, plot: Plot) -> None:
        scene = plot.scene
        self.plot = plot
        self.caps = plot.caps
        self.world = World(
            *scene.groups,
            tokens=scene.tokens,
            per_hash=scene.per_hash,
            per_chunk=scene.per_chunk,
            slots=plot.slots,
            tiers=[StubTier()],
            retention=plot.retention,
        )
        if plot.slots == ENOUGH:
            scene.fill(self.world)
        self.handle = self.world.request(plot.caps)
        self.state = self.world.engine.requests[self.handle]
        self.tables: list[list[int]] = [[] for _ in scene.groups]
        self.given: list[list[int]] = [[] for _ in scene.groups]
        self.computed = 0
        self.new = True
        self.open: list[CopyPlan] = []
        self.limit = 0

    def run(self) -> Iterator[tuple[str, StepResult]]:
        """Live; yield after each step what it was and what came of it."""
        for kind, size in self.plot.acts:
            match kind:
                case "compute" | "hand over":
                    yield kind, self._compute(size, hand_over=kind == "hand over")
                case "done":
                    self.all_done()
                case "room":
                    self.world.pool.add_slots(size)
                case "caps":
                    self.caps = self.plot.later
                    self.world.engine.set_caps(self.handle, self.caps)
                case "preempt":
                    yield kind, self._preempt()
        yield "end", self._end()

    def all_done(self) -> None:
        """Acknowledge every store."""
        self.world.done(*self.open)
        self.open = []

    # --- steps -------------------------------------------------------------------------------

    def _compute(self, size: int, *, hand_over: bool) -> StepResult:
        if self.computed >= self.state.num_tokens:
            self.world.grow(self.handle, 1)
        after = min(self.computed + size, self.state.num_tokens)
        added = self._extend(after)
        handoffs = self._handoffs(after) if hand_over else ()
        self.world.computed[self.handle] = self.computed
        blocks = self.tables if self.new else added
        result = self.world.run(
            self.handle, after - self.computed, blocks=blocks, handoffs=handoffs, new=self.new
        )
        self.new = False
        self.computed = after
        return self._built(result, after)

    def _extend(self, after: int) -> list[list[int]]:
        added = []
        groups = self.world.engine.geometry.groups
        for group, table, given in zip(groups, self.tables, self.given, strict=True):
            if group.kind is GroupKind.SLIDING_WINDOW:
                kept = self.computed - group.window_tokens + 1 - group.extra
                table[:] = [
                    0 if at < kept // group.tokens_per_block else block
                    for at, block in enumerate(table)
                ]
            more = self.world.new_blocks(ceil_div(after, group.tokens_per_block) - len(table))
            table.extend(more)
            given.extend(more)
            added.append(more)
        return added

    def _handoffs(self, after: int) -> list[Handoff]:
        """States at the last hash and at the last block before ``after``."""
        found = []
        for group in self.world.engine.geometry.groups:
            for unit in (self.world.per_hash, group.tokens_per_block):
                boundary = after - after % unit
                if group.align and boundary:
                    [block] = self.world.new_blocks(1)
                    found.append(Handoff(group=group.number, block=block, boundary=boundary))
        return found

    def _preempt(self) -> StepResult:
        """The blocks go, flushed stores end, and the request is admitted anew."""
        result = self._built(self.world.idle(preempted=[self.handle]), 0)
        self.all_done()
        self.world.match(self.handle)
        self.tables = [[] for _ in self.tables]
        self.given = [[] for _ in self.tables]
        self.computed = 0
        self.new = True
        return result

    def _end(self) -> StepResult:
        self.world.computed[self.handle] = self.computed
        written = max(self.state.num_prompt, self.state.num_tokens - 1)
        after = self.computed if self.plot.status == "aborted" else written
        return self._built(self.world.end(self.handle, status=self.plot.status), after)

    def _built(self, result: StepResult, after: int) -> StepResult:
        limits = [after, self.state.num_tokens]
        if self.caps.max_offload_tokens is not None:
            limits.append(self.caps.max_offload_tokens)
        if self.caps.prompt_only:
            limits.append(self.state.num_prompt)
        self.limit = min(limits)
        self.open += result.stores
        return result


def ends(life: Life, plan: CopyPlan) -> Sequence[int]:
    """Return where the keys of a plan end, in tokens."""
    at = {key: number + 1 for number, key in enumerate(life.state.hashes)}
    return [life.world.per_hash * at[key] for _, key in plan.keys]
