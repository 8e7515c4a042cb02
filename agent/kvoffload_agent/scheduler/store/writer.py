"""Issues the stores of a step, in the order that gives jobs their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry
from kvoffload_agent.scheduler.jobs import Jobs
from kvoffload_agent.scheduler.plan import Part, assemble, whole_chunks
from kvoffload_agent.scheduler.request import RequestState, positions
from kvoffload_agent.scheduler.store import handoffs
from kvoffload_agent.scheduler.store.contents import Contents
from kvoffload_agent.scheduler.store.select import Selection, Selector
from kvoffload_agent.scheduler.types import Blocks, CopyPlan, ScheduledRequest, StepInput
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.slots import Slots

Requests = Mapping[int, RequestState]


class StoreWriter:
    """Follows block tables and makes store jobs."""

    def __init__(self, geometry: Geometry, pool: PartitionPool, client: Client, jobs: Jobs) -> None:
        self._geometry = geometry
        self._pool = pool
        self._client = client
        self._jobs = jobs
        self._selector = Selector(geometry)
        self._contents = Contents()
        self._given: set[int] = set()

    # --- block tables ------------------------------------------------------------------------

    def loaded_into(self, blocks: Blocks) -> None:
        """These blocks were allocated for a load."""
        if self._geometry.windowed:
            self._contents.given(blocks.tolist())

    def take_tables(self, step: StepInput, requests: Requests, allocated: set[int]) -> None:
        """Follow the block tables of a step; re-allocated blocks flush the jobs that read them.

        ``allocated``: blocks allocated since the last step, besides those that the step names.
        """
        given = set(allocated)
        for entry in step.requests:
            for table in entry.blocks or ():
                given.update(np.asarray(table).tolist())
        given.update(target for _, target in step.copies)
        given.discard(0)
        self._given = given
        if given:
            self._jobs.flush(self._jobs.fences.crossed(given))
            if self._geometry.windowed:
                self._contents.given(target for _, target in step.copies)
                for state in requests.values():
                    self._drop_stale(state, given)
        for entry in step.requests:
            if entry.blocks is not None and entry.handle in requests:
                self._extend(requests[entry.handle], entry)

    def _drop_stale(self, state: RequestState, given: set[int]) -> None:
        """Null window blocks that went to somebody else before they were stored."""
        for group in self._geometry.windowed:
            table = state.blocks[group.number]
            for at in range(self._selector.first_block(state, group), len(table)):
                if table[at] in given:
                    table[at] = 0
                    state.refused = None

    def _extend(self, state: RequestState, entry: ScheduledRequest) -> None:
        whole = entry.new or entry.resumed
        if whole:
            state.refused = None
        for number, table in enumerate(entry.blocks or ()):
            row = np.asarray(table, dtype=np.int64).tolist()
            group = self._geometry.groups[number]
            if whole:
                state.blocks[number] = []
                state.contents[number] = []
            state.blocks[number] += row
            if self._geometry.windowed:
                # A new table begins with what was computed before, by others maybe.
                kept = entry.computed // group.tokens_per_block if whole else 0
                self._contents.given(row[kept:])
            if group.windowed:
                state.contents[number] += self._contents.of(row)

    def drop_lost(self, state: RequestState) -> None:
        """Null window blocks that went to somebody else, also after they were stored."""
        for group in self._geometry.windowed:
            table, taken = state.blocks[group.number], state.contents[group.number]
            for at, number in enumerate(self._contents.of(table)):
                if number != taken[at]:
                    table[at] = 0

    # --- jobs --------------------------------------------------------------------------------

    def stores(self, step: StepInput, requests: Requests) -> list[CopyPlan]:
        """Return the stores of a step."""
        for handle, boundary in step.shared_prefix_boundaries.items():
            if handle in requests:
                requests[handle].junctions.add(boundary)
                requests[handle].refused = None
        plans = self._handoffs(step, requests)
        for entry in step.requests:
            state = requests.get(entry.handle)
            if state is None:
                continue
            after = entry.computed + entry.scheduled
            if after >= state.wake_at:
                plans += self._chunks(state, after)
        for handle in step.finished:
            state = requests.get(handle)
            if state is not None and not state.closed:
                plans += self._last_chunks(state)
        return plans

    def _last_chunks(self, state: RequestState) -> list[CopyPlan]:
        """Store what a finished request has left; others may own its blocks from this step on."""
        state.refused = None
        plans = self._chunks(state, state.tokens_at_end)
        for plan in plans:
            if not self._given.isdisjoint(plan.blocks.tolist()):
                self._jobs.flush([plan.job])
        return plans

    def _handoffs(self, step: StepInput, requests: Requests) -> list[CopyPlan]:
        if not step.handoffs:
            return []
        geometry = self._geometry
        after = {entry.handle: entry.computed + entry.scheduled for entry in step.requests}
        given = [
            (requests[handle], item)
            for handle, items in step.handoffs.items()
            if handle in requests
            for item in items
        ]
        plans = []
        for state, item in given:
            if handoffs.is_aligned(geometry, item):
                single = handoffs.aligned(geometry, state, item)
                plans += self._singles(state, [single] if single else None)
        for state, item in given:
            if not handoffs.is_aligned(geometry, item):
                computed = after.get(state.handle, 0)
                singles = handoffs.partial(geometry, state, item, computed=computed)
                plans += self._singles(state, singles)
        return plans

    def _singles(
        self, state: RequestState, singles: list[handoffs.SingleBlock] | None
    ) -> list[CopyPlan]:
        if not singles:
            return []
        runs = [single.run for single in singles]
        grant = self._pool.offer(self._client, state.pool_request, runs)
        if grant is None or not len(grant.written()):
            return []
        parts = [Part.empty() for _ in self._geometry.groups]
        keys = []
        for single, slots in zip(singles, grant.slots, strict=True):
            if slots[0] >= 0:
                parts[single.run.group] = single.part(int(slots[0]))
                keys.append((single.run.group, single.run.hashes))
        return [self._open(state, parts, keys, written=grant.written(), handed_over=True)]

    def _chunks(self, state: RequestState, tokens: int) -> list[CopyPlan]:
        offloadable = state.storable_tokens(tokens)
        groups = self._geometry.groups
        storable = [self._selector.storable(state, group, offloadable) for group in groups]
        selected = [
            selection
            for group, last in zip(groups, storable, strict=True)
            if (selection := self._selector.select(state, group, last)) is not None
        ]
        plans = []
        if selected:
            # The same offer to the same pool has the same answer and changes nothing.
            offer = (self._pool.state(self._client), *storable, *state.next_store)
            if offer == state.refused:
                return []
            runs = [self._run(state, selection) for selection in selected]
            grant = self._pool.offer(self._client, state.pool_request, runs)
            if grant is None:
                state.refused = (self._pool.state(self._client), *offer[1:])
                return []
            written = grant.written()
            if len(written):
                plans = [self._plan(state, selected, runs, grant.slots, written)]
        for number, last in enumerate(storable):
            state.next_store[number] = max(state.next_store[number], last)
        state.sleep()
        return plans

    def _plan(
        self,
        state: RequestState,
        selected: Sequence[Selection],
        runs: Sequence[KeyRun],
        granted: Sequence[Slots],
        written: Slots,
    ) -> CopyPlan:
        parts = [Part.empty() for _ in self._geometry.groups]
        keys = []
        for selection, run, slots in zip(selected, runs, granted, strict=True):
            number = selection.group.number
            parts[number] = whole_chunks(
                table=state.blocks[number],
                chunks=selection.chunks,
                slots=slots,
                per_chunk=self._geometry.blocks_per_chunk,
            )
            hashes = run.hashes
            if (slots < 0).any():
                taken = zip(hashes, slots.tolist(), strict=True)
                hashes = [key for key, slot in taken if slot >= 0]
            keys.append((number, hashes))
        return self._open(state, parts, keys, written=written, handed_over=False)

    def _open(
        self,
        state: RequestState,
        parts: Sequence[Part],
        keys: Sequence[tuple[int, Sequence[bytes]]],
        *,
        written: Slots,
        handed_over: bool,
    ) -> CopyPlan:
        plan = assemble(job=self._jobs.next, handle=state.handle, parts=parts, keys=keys)
        now = [
            part.blocks
            for group, part in zip(self._geometry.groups, parts, strict=True)
            if group.windowed or handed_over
        ]
        later = [
            part.blocks
            for group, part in zip(self._geometry.groups, parts, strict=True)
            if not (group.windowed or handed_over)
        ]
        self._jobs.open(state, store=True, slots=written, sources=later, fenced=now)
        if state.status:
            self._jobs.fence_sources(state)
        return plan

    def _run(self, state: RequestState, selection: Selection) -> KeyRun:
        group, chunks = selection.group, selection.chunks
        keys = state.keys[group.number]
        if isinstance(chunks, range):
            hashes = keys[chunks.start : chunks.stop]
            ends = positions(group, chunks.start, len(chunks))
        else:
            hashes = [keys[at] for at in chunks]
            ends = (np.array(chunks, dtype=np.int64) + 1) * group.chunk
        return KeyRun(group=group.number, hashes=hashes, positions=ends)
